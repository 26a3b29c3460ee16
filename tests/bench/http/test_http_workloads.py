"""What a benchmark asks."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prism.bench.http.load import Session
from prism.bench.http.workloads import Agents, Documents, FromFile, Rag, Workload, marked
from prism.errors import InvalidRequest

ASK = {"url": "/v1/completions", "body": {"prompt": "Once"}}


def _file(folder: Path, *lines: Any) -> FromFile:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return FromFile(path, "m")


@pytest.mark.parametrize("workload", [Rag("m", 8), Documents("m", 8), Agents("m")])
def test_equal_seeds_draw_equal_sessions(workload: Workload) -> None:
    assert workload.draw(2, 20, 3) == workload.draw(2, 20, 3) != workload.draw(2, 20, 4)


@pytest.mark.parametrize("workload", [Rag("m", 8), Documents("m", 8), Agents("m")])
def test_every_request_is_streamed_named_once_and_asks_for_usage(workload: Workload) -> None:
    turns = [turn for session in workload.draw(1, 30, 0) for turn in session.turns]
    assert len({turn.name for turn in turns}) == len(turns) > 10
    assert all(turn.body["stream"] and turn.body["stream_options"] == {"include_usage": True} for turn in turns)


def test_made_up_documents_are_shared_by_zipfs_law_and_stand_in_orders_of_their_own() -> None:
    load = Documents("m", 8).draw(20, 60, 0)
    asked = [[part["text"] for part in one.turns[0].body["messages"][-1]["content"]] for one in load]
    counts = _asked_of(load)
    assert all(len(set(parts[:-1])) == 5 and parts[-1].startswith("Question: ") for parts in asked)
    assert counts[0][1] > 3 * counts[len(counts) // 2][1]
    places = {parts.index(counts[0][0]) for parts in asked if counts[0][0] in parts}
    assert places == {0, 1, 2, 3, 4}
    assert {text for text, _ in counts} <= {text for text, _ in _asked_of(Documents("m", 8).draw(20, 600, 1))}


def _asked_of(load: list[Session]) -> list[tuple[str, int]]:
    bodies = (one.turns[0].body["messages"][-1]["content"][:-1] for one in load)
    return Counter(part["text"] for parts in bodies for part in parts).most_common()


def test_passages_are_declared_unordered_only_if_asked() -> None:
    declared, plain = (Rag("m", 8, reorder=reorder).draw(1, 10, 0) for reorder in (True, False))
    assert all(session.turns[0].body["prism"] == {"reorder": True} for session in declared)
    assert not any("prism" in session.turns[0].body for session in plain)


def test_an_agents_turn_holds_those_before_it() -> None:
    (session, *_) = Agents("m").draw(1, 10, 0)
    prompts = [turn.body["messages"] for turn in session.turns]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(prompts))
    assert all(turn.body["tools"] for turn in session.turns)


def test_no_conversation_is_held_twice_before_all_were_held() -> None:
    begins = [json.dumps(session.turns[-1].body["messages"]) for session in Agents("m").draw(1, 30, 0)]
    assert len(set(begins)) == len(begins) > 15


def test_own_requests_keep_their_order_and_get_the_model(tmp_path: Path) -> None:
    sessions = _file(tmp_path, *({"custom_id": str(n), **ASK} for n in range(40))).draw(20, 30, 0)
    assert [session.turns[0].name for session in sessions[:2]] == ["0-0", "1-1"]
    assert sessions[0].turns[0].body["model"] == "m"
    assert sessions[0].turns[0].route == "/v1/completions"
    assert len(sessions) == 40


def test_own_moments_are_kept_and_stretched_to_a_rate(tmp_path: Path) -> None:
    workload = _file(tmp_path, *({"at_s": at, **ASK} for at in (5.0, 6.0, 8.0)))
    assert [one.at_s for one in workload.draw(0.0, 100, 0)] == [0.0, 1.0, 3.0]
    assert [one.at_s for one in workload.draw(0.5, 100, 0)] == [0.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1: "),
        ([ASK, "[]"], 'line 2: not a JSON object with a "body"'),
        ([{"body": {}}], 'line 1: "body" has neither'),
        ([{**ASK, "url": "/v1/embeddings"}], 'line 1: "url" must be one of'),
        ([ASK, {"at_s": 1, **ASK}], "1 of 2 lines have at_s"),
        ([{"at_s": 2, **ASK}, {"at_s": 1, **ASK}], "at_s must not go back"),
        ([ASK], "have no at_s, so the rate must be given"),
    ],
)
def test_a_bad_file_is_said_with_its_line(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        _file(tmp_path, *lines).draw(0.0, 10, 0)


def test_a_marker_stands_before_everything(tmp_path: Path) -> None:
    (plain,) = marked(_file(tmp_path, {"at_s": 0, **ASK}).draw(0.0, 10, 0), "[x]")
    assert plain.turns[0].body["prompt"] == "[x]\nOnce"
    chat = marked(Rag("m", 8).draw(1, 10, 0), "[x]")
    assert all(session.turns[0].body["messages"][0]["content"].startswith("[x]\n") for session in chat)


def test_a_marker_leaves_the_load_it_was_made_from() -> None:
    load = Rag("m", 8).draw(1, 10, 0)
    before = json.dumps([session.turns[0].body for session in load])
    marked(load, "[x]")
    assert json.dumps([session.turns[0].body for session in load]) == before


def test_prompts_of_tokens_cannot_be_marked(tmp_path: Path) -> None:
    load: list[Session] = _file(tmp_path, {"at_s": 0, "body": {"prompt": [1, 2]}}).draw(0.0, 10, 0)
    with pytest.raises(InvalidRequest, match="use --cold reset"):
        marked(load, "[x]")
