"""`prism explain`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from prism.__main__ import app
from prism.telemetry.explain import Explanation, explain
from prism.telemetry.timeline import RequestTimeline


@pytest.fixture
def told() -> Explanation:
    timeline = RequestTimeline("[bold]req-1", arrived_at=0.0, arrived_wall_ns=0)
    timeline.refused(0.5, 429, "queue_full")
    return explain(timeline, "ab" * 16, 1.0)


def run(*argv: str) -> Any:
    return CliRunner().invoke(app, ["explain", *argv])


def test_its_lines_are_printed_as_they_are(answers: Any, told: Explanation) -> None:
    answers.body = msgspec.json.encode(told)
    ended = run("req-1", "--admin", answers.address)
    assert (ended.exit_code, ended.output.splitlines()) == (0, told.lines)
    assert answers.asked == ["/prism/v1/explain/req-1?all_tenants=false"]


def test_json_is_what_the_port_answered(answers: Any, told: Explanation) -> None:
    answers.body = msgspec.json.encode(told)
    ended = run("req-1", "--admin", answers.address, "--json", "--all-tenants")
    assert json.loads(ended.output) == msgspec.to_builtins(told)
    assert answers.asked == ["/prism/v1/explain/req-1?all_tenants=true"]


def test_an_unknown_request_is_said_in_the_predictors_words(answers: Any) -> None:
    answers.status, answers.body = 404, b'{"error": {"message": "No request x is under way."}}'
    ended = run("x", "--admin", answers.address)
    assert (ended.exit_code, ended.stderr) == (1, "prism explain: No request x is under way.\n")
