"""The compatibility table is complete and current for the installed vLLM and KServe."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from prism.engine.frontend.arguments import parse_arguments
from prism.engine.frontend.compatibility import (
    CHANGED,
    KSERVE_KEEPS,
    REFUSALS,
    WITH_SEGMENTS,
    flag_status,
    route_status,
)
from prism.engine.frontend.compatibility_page import compatibility_page, vllm_flags, vllm_routes
from prism.engine.frontend.routes import INFERENCE
from prism.errors import UnsupportedArgument
from prism.serving.kserve_flags import add_kserve_flags, kserve_actions

REFUSED = [
    ["--api-server-count", "2"],
    ["--workers", "2"],
    ["--headless"],
    ["--grpc"],
    ["--data-parallel-size", "2", "--data-parallel-size-local", "1"],
    ["--data-parallel-rank", "1"],
    ["--data-parallel-start-rank", "1"],
    ["--data-parallel-address", "10.0.0.1"],
    ["--data-parallel-backend", "ray"],
    ["--data-parallel-external-lb"],
    ["--data-parallel-hybrid-lb"],
    ["--data-parallel-multi-port-external-lb"],
    ["--scheduler-cls", "my.Scheduler"],
]


def parse(*argv: str) -> Namespace:
    return parse_arguments(["--model", "m", *argv], add_kserve_flags)[0]


def test_the_page_in_the_docs_is_the_generated_one(repository: Path) -> None:
    written = (repository / "docs" / "compatibility.md").read_text()
    assert written == compatibility_page(), "python -m prism.engine.frontend.compatibility_page docs/compatibility.md"


def test_every_route_named_in_the_table_is_vllms() -> None:
    paths = {path for _, path in vllm_routes()}
    assert set(WITH_SEGMENTS) <= paths
    assert set(INFERENCE) <= paths
    assert set(KSERVE_KEEPS) - {"/"} <= paths


def test_every_flag_named_in_the_table_exists() -> None:
    kserves = {action.option_strings[0].replace("_", "-") for action in kserve_actions()}
    known = set(vllm_flags()) | kserves
    assert {refusal.flag for refusal in REFUSALS} <= known
    assert set(CHANGED) <= known


def test_no_kserve_path_hides_a_route_of_vllms() -> None:
    from prism.serving.front import _KSERVE

    hidden = {path for _, path in vllm_routes() if _KSERVE.match(path)}
    assert hidden <= set(KSERVE_KEEPS)


@pytest.mark.parametrize("argv", REFUSED, ids=lambda argv: argv[0])
def test_a_refused_argument_stops_the_start_with_its_reason(argv: list[str]) -> None:
    with pytest.raises(UnsupportedArgument) as refused:
        parse(*argv)
    flag = next(r for r in REFUSALS if r.flag in argv or r.flag == argv[-2 if len(argv) > 2 else 0])
    assert flag.reason in str(refused.value)


def test_each_refusal_of_the_table_is_tried() -> None:
    tried = {part for argv in REFUSED for part in argv}
    assert {refusal.flag for refusal in REFUSALS} <= tried


def test_the_table_says_so_for_a_refused_flag_and_a_segmented_route() -> None:
    assert flag_status("--headless").startswith("refused at start")
    assert flag_status("--max-model-len") == "served unchanged"
    assert route_status("/v1/responses") == "served with segments"


@pytest.mark.parametrize("scheduler", ["PrismAsyncScheduler", "PrismScheduler"])
def test_prisms_own_scheduler_may_be_named(scheduler: str) -> None:
    name = f"prism.engine.enginecore.scheduler.{scheduler}"
    assert parse("--scheduler-cls", name).scheduler_cls == name
