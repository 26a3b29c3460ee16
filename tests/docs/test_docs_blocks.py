"""Every block of the documentation is what it says it is: commands exist, settings are valid, programs compile."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import typer
import yaml

from prism.bench.cost_model import read_cost_model
from prism.bench.demo import demo_command
from prism.bench.http.command import bench_command
from prism.bench.replay import replay_command
from prism.bench.sim import app as sim_app
from prism.config.document import in_force, parse_document
from prism.config.schema import PrismSpec
from prism.engine.frontend.arguments import make_parser
from prism.serving.kserve_flags import add_kserve_flags

LANGUAGES = {"sh", "console", "python", "yaml", "json", "promql", ""}
ELSEWHERE = {"helm", "kubectl"}
"""Run by the tests on a real cluster; here they are held against the chart and the manifests."""
ORDINARY = {"curl", "ls", "cat", "export", "git", "pip", "docker", "promtool"}

Blocks = Sequence[Any]


def _of(blocks: Blocks, *languages: str) -> list[Any]:
    return [block for block in blocks if block.language in languages]


def _commands(blocks: Blocks) -> Iterator[tuple[str, list[str]]]:
    """Each command line of a shell block, and of an indented one, as words, without variables set before it.

    Of a `console` block those behind a prompt; the others are what was answered.
    """
    for block in _of(blocks, "sh", "console", ""):
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language == "console":
                line = line.removeprefix("$ ") if line.startswith("$ ") else ""
            words = _words(line, block) if _is_command(line) else []
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield str(block), words


def _words(line: str, block: Any) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        if block.language:
            raise
        return []  # an indented block need not be shell


def _is_command(line: str) -> bool:
    first = line.split("=")[0] if re.match(r"[A-Z_]+=", line) else line.split(" ")[0]
    return bool(re.match(r"^[A-Za-z_./-]+$", first)) and not line.startswith(("─", "│"))


@pytest.fixture(scope="module")
def commands(code_blocks: Blocks) -> list[tuple[str, list[str]]]:
    return [
        (place, words)
        for place, words in _commands(code_blocks)
        if Path(words[0]).name in ELSEWHERE | ORDINARY | {"make", "prism", "python", "pytest"}
    ]


def test_languages_are_those_that_are_checked(code_blocks: Blocks) -> None:
    assert {block.language for block in code_blocks} <= LANGUAGES


def test_every_line_of_a_shell_block_is_a_command_that_is_checked(code_blocks: Blocks) -> None:
    allowed = ELSEWHERE | ORDINARY | {"make", "prism", "python", "pytest"}
    unknown = [
        (place, words)
        for place, words in _commands(_of(code_blocks, "sh", "console"))
        if Path(words[0]).name not in allowed
    ]
    assert unknown == []


def test_make_targets_exist(commands: list[tuple[str, list[str]]], repository: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (repository / "Makefile").read_text(), flags=re.MULTILINE))
    asked = {word for _, words in commands if words[0] == "make" for word in words[1:] if "=" not in word}
    assert asked <= targets
    assert asked


def test_arguments_of_the_demo_behind_make_are_its_own(commands: list[tuple[str, list[str]]]) -> None:
    for _, words in commands:
        given = [word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")]
        if words[:2] == ["make", "demo"] and given:
            _parsed("demo", shlex.split(given[0]))


def test_modules_that_are_run_exist(commands: list[tuple[str, list[str]]]) -> None:
    modules = [words[2] for _, words in commands if Path(words[0]).name == "python" and words[1:2] == ["-m"]]
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []


def _alone(command: Callable[..., None]) -> Any:
    app = typer.Typer()
    app.command()(command)
    return typer.main.get_command(app)


def _parsed(name: str, arguments: list[str]) -> None:
    """Raises for arguments that the command has not."""
    if name == "serve":
        make_parser(add_kserve_flags).parse_args(arguments)
        return
    handed_over: dict[str, Callable[..., None]] = {
        "demo": demo_command,
        "bench": bench_command,
        "replay": replay_command,
    }
    if name in handed_over:
        _alone(handed_over[name]).make_context(name, arguments)
        return
    command = typer.main.get_command(sim_app) if name == "sim" else _main_command(name)
    command.make_context(name, arguments)


def _main_command(name: str) -> Any:
    from prism.__main__ import app

    return vars(typer.main.get_command(app))["commands"][name]


def test_prism_commands_parse(commands: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(place, words[1:]) for place, words in commands if Path(words[0]).name == "prism"]
    assert {words[0] for _, words in asked} >= {"serve", "bench", "replay", "sim"}
    monkeypatch.setattr(Path, "exists", lambda _: True)
    for place, (name, *arguments) in asked:
        try:
            _parsed(name, [word for word in arguments if word != "..."])
        except typer.Exit:
            pass  # --help
        except Exception as error:  # noqa: BLE001 - said with its place
            pytest.fail(f"{place}: prism {name} {' '.join(arguments)}: {error}")


def test_helm_values_that_are_set_exist(commands: list[tuple[str, list[str]]], repository: Path) -> None:
    schema = json.loads((repository / "charts" / "prism" / "values.schema.json").read_text())
    for place, words in commands:
        if words[0] == "helm":
            for flag, value in pairwise(words):
                if flag in ("--set", "--set-json", "--set-string"):
                    assert _is_value(schema, value.split("=")[0].split(".")), f"{place}: {value}"


def _is_value(schema: dict[str, Any], path: list[str]) -> bool:
    held: Any = schema
    for name in path:
        held = held.get("properties", {}).get(name.split("[")[0], held.get("additionalProperties"))
        if not isinstance(held, dict):
            return bool(held)
    return True


def test_files_that_are_applied_exist(commands: list[tuple[str, list[str]]], repository: Path) -> None:
    for place, words in commands:
        if words[0] == "kubectl" and "-f" in words:
            file = words[words.index("-f") + 1]
            assert file == "-" or (repository / file).is_file(), f"{place}: {file}"


def test_settings_documents_are_valid(code_blocks: Blocks) -> None:
    found = [block for block in _of(code_blocks, "yaml") if "stable" in (yaml.safe_load(block.text) or {})]
    for block in found:
        assert in_force(parse_document(block.text.encode()), None).generation > 0, str(block)
    assert len(found) >= 3


def test_specs_are_valid(code_blocks: Blocks) -> None:
    found = [yaml.safe_load(block.text) for block in _of(code_blocks, "yaml")]
    specs = [one["spec"] for one in found if one.get("kind", "PrismConfig") == "PrismConfig" and "spec" in one]
    for spec in specs:
        PrismSpec.model_validate(spec)
    assert len(specs) >= 2


def test_cost_models_can_be_read(code_blocks: Blocks, tmp_path: Path) -> None:
    found = [block for block in _of(code_blocks, "yaml") if "model" in yaml.safe_load(block.text)]
    for block in found:
        (tmp_path / "model.yaml").write_text(block.text)
        assert read_cost_model(str(tmp_path / "model.yaml")).kv_tokens > 0


def test_other_yaml_is_values_of_the_chart(code_blocks: Blocks, repository: Path) -> None:
    schema = json.loads((repository / "charts" / "prism" / "values.schema.json").read_text())
    # Checked above; manifests and parts of an InferenceService by tests/chart, against KServe's schemas.
    kinds = {"kind", "spec", "stable", "model", "predictor"}
    for block in _of(code_blocks, "yaml"):
        document = yaml.safe_load(block.text)
        if not kinds & document.keys():
            assert list(jsonschema_rs.validator_for(schema).iter_errors(document)) == [], str(block)


def test_python_blocks_are_programs(code_blocks: Blocks) -> None:
    for block in _of(code_blocks, "python"):
        compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_json_blocks_are_json(code_blocks: Blocks) -> None:
    for block in _of(code_blocks, "json"):
        assert [json.loads(line) for line in block.text.splitlines()], str(block)
