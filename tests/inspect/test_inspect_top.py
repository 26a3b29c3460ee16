"""`prism top`, and what it says when nobody answers."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from prism.__main__ import app
from prism.errors import UnansweredQuestion
from prism.inspect.admin_port import AdminPort
from prism.inspect.top import render_top
from prism.telemetry.metrics import Metrics
from prism.telemetry.top import SettingsView, TopView, top_view

REFUSED = SettingsView(generation=3, digest="d1", source="team/rag", role="stable", refusal="not_yaml: line 4")


@pytest.fixture
def view() -> TopView:
    metrics = Metrics("smol", clock=lambda: 0.0)
    metrics.sample()
    metrics.request_arrived()
    metrics.request_admitted({"document": 30}, {"document": 40})
    return top_view(metrics, "ready", REFUSED, 10.0)


def run(*argv: str) -> Any:
    return CliRunner().invoke(app, list(argv))


def test_the_state_is_shown_once(answers: Any, view: TopView) -> None:
    answers.body = msgspec.json.encode(view)
    ended = run("top", "--admin", answers.address, "--once")
    assert (ended.exit_code, answers.asked) == (0, ["/prism/v1/top"])
    assert all(word in ended.output for word in ("smol", "ready", "75.0%", "generation 3 of team/rag"))


def test_json_is_what_the_port_answered(answers: Any, view: TopView) -> None:
    answers.body = msgspec.json.encode(view)
    ended = run("top", "--admin", answers.address, "--once", "--json")
    assert json.loads(ended.output) == msgspec.to_builtins(view)


def test_a_refused_document_is_shown(view: TopView) -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(render_top(view))
    assert isinstance(console.file, io.StringIO)
    assert "not_yaml: line 4" in console.file.getvalue()


def test_nobody_there_is_said_in_one_sentence_with_what_to_do() -> None:
    ended = run("top", "--admin", "127.0.0.1:1", "--once")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("prism top: Nobody answers at http://127.0.0.1:1 ")
    assert "kubectl port-forward" in ended.stderr


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b'{"detail":"Not Found"}', "not a predictor's admin port"),
        (200, b"<html>", "not as this version's admin port"),
        (200, b'{"model_name": 1}', "not as this version's admin port"),
        (503, b'{"error": {"message": "Not yet."}}', "^Not yet.$"),
    ],
)
def test_an_answer_of_another_kind_is_explained(answers: Any, status: int, body: bytes, said: str) -> None:
    answers.status, answers.body = status, body
    with pytest.raises(UnansweredQuestion, match=said):
        AdminPort(answers.address).ask(TopView, "top")


def test_a_name_cannot_leave_its_place_in_the_path(answers: Any) -> None:
    with pytest.raises(UnansweredQuestion):
        AdminPort(answers.address).ask(TopView, "explain", "../settings?x=1")
    assert answers.asked == ["/prism/v1/explain/..%2Fsettings%3Fx%3D1"]
