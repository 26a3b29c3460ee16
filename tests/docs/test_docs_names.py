"""Names that the documentation uses exist: flags, settings, metrics, admin routes, modules, files."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel

from prism.bench.demo import demo_command
from prism.bench.http.command import bench_command
from prism.bench.replay import replay_command
from prism.bench.sim import app as sim_app
from prism.config.schema import PrismSpec, part_of
from prism.engine.frontend.arguments import make_parser
from prism.serving import admin
from prism.serving.kserve_flags import add_kserve_flags
from prism.telemetry import metrics

Pages = dict[str, str]

GONE = {
    *("--model_dir", "--model_id", "--model_revision", "--max_length", "--backend", "--task", "--disable_log_requests"),
    *("--return_probabilities", "--return_token_type_ids", "--tensor_input_names", "--disable_lower_case"),
    *("--disable_special_tokens", "--max_log_len"),
}
"""Flags of KServe's huggingfaceserver, named where the documentation says what takes their place."""

GENERATED = {"docs/results", "docs/results/cells"}
"""Made by commands that the page names."""

OTHERS = {"--set", "--workers"}
"""Flags of other programs."""


def _inline(pages: Pages) -> set[str]:
    """What stands between backquotes, outside of blocks."""
    text = re.sub(r"^```.*?^```", "", "\n".join(pages.values()), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.fixture(scope="module")
def known_flags() -> set[str]:
    parser = make_parser(add_kserve_flags)
    flags = set(parser._option_string_actions)
    flags |= {flag.replace("-", "_").replace("__", "--", 1) for flag in flags}
    for command in (demo_command, bench_command, replay_command):
        app = typer.Typer()
        app.command()(command)
        flags |= _options(typer.main.get_command(app))
    from prism.__main__ import app as main

    return flags | _options(typer.main.get_command(sim_app)) | _options(typer.main.get_command(main))


def _options(command: Any) -> set[str]:
    own = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    inner = vars(command).get("commands", {}).values()
    return own.union(*map(_options, inner))


def test_flags_that_are_named_exist(pages: Pages, known_flags: set[str]) -> None:
    operator = {"docs/prismconfig.md", "docs/operations.md", "charts/prism/README.md", "docs/compatibility.md"}
    named = {
        flag
        for text in _inline({page: text for page, text in pages.items() if page not in operator})
        for flag in re.findall(r"^(--[a-z][a-z0-9_-]*)", text)
    }
    assert named - known_flags - GONE - OTHERS == set()


def test_commands_that_are_named_exist(pages: Pages) -> None:
    from prism.__main__ import app

    known = set(vars(typer.main.get_command(app))["commands"])
    assert {name for text in _inline(pages) for name in re.findall(r"^prism ([a-z]+)", text)} - known == set()


def test_settings_that_are_named_exist(pages: Pages) -> None:
    fields = set(_fields(PrismSpec))
    tops = "|".join(str(field.alias) for field in PrismSpec.model_fields.values())
    named = {path for text in _inline(pages) for path in re.findall(rf"^((?:{tops})(?:\.[a-zA-Z0-9\[\]]+)+)", text)}
    assert {path.replace("[]", "") for path in named} - fields == set()


def _fields(model: type[BaseModel], prefix: str = "") -> list[str]:
    found = []
    for field in model.model_fields.values():
        path = prefix + str(field.alias)
        found.append(path)
        part = part_of(field.annotation)
        if part is not None:
            found += _fields(part, path + ".")
    return found


def test_metrics_that_are_named_exist(pages: Pages) -> None:
    known = {value for value in vars(metrics).values() if isinstance(value, str) and value.startswith("prism_")}
    suffixes = ("", "_bucket", "_sum", "_count")
    allowed = {name + suffix for name in known for suffix in suffixes} | {"prism_operator", "prism_chart"}
    text = "\n".join(pages.values())
    named = {name for name in re.findall(r"\bprism_[a-z_0-9]+\b", text) if not name.startswith("prism_operator")}
    assert named - allowed - {"prism_recording"} == set()


def test_admin_routes_that_are_named_exist(pages: Pages) -> None:
    source = Path(str(admin.__file__)).read_text()
    known = set(re.findall(r'Route\("(/prism/v1/[a-z_]+)', source))
    assert known
    named = set(re.findall(r"/prism/v1/[a-z_]+", "\n".join(pages.values())))
    assert named - known == set()


def test_modules_and_files_that_are_named_exist(pages: Pages, repository: Path) -> None:
    inline = _inline(pages)
    modules = {text for text in inline if re.fullmatch(r"prism(?:\.[a-z_]+)+", text)} - _attributes()
    files = {text for text in inline if re.fullmatch(r"(?:service|tests|docs|charts|requirements)/[\w./-]+\w", text)}
    assert [name for name in modules if not _is_module(name)] == []
    assert [name for name in files - GENERATED if not list(repository.glob(name))] == []


def _attributes() -> set[str]:
    """Names of spans and attributes look like modules."""
    from prism.telemetry import names

    return {value for value in vars(names).values() if isinstance(value, str)} | _SPANS


_SPANS = {f"prism.{name}" for name in ("admission_wait", "prefill", "first_token", "decode", "sequence", "preempted")}


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_every_page_of_the_site_can_be_reached(repository: Path) -> None:
    """From the site's navigation, or by links from a page that can."""
    docs = repository / "docs"
    open_pages = set(re.findall(r"([\w/-]+\.md)", (repository / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    reached: set[str] = set()
    while open_pages:
        page = open_pages.pop()
        reached.add(page)
        links = re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]*)?\)", (docs / page).read_text())
        targets = {os.path.normpath(Path(page).parent / link) for link in links}
        open_pages |= {target for target in targets if (docs / target).is_file()} - reached
    there = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert there - reached == set()
