"""ContextPilot's index decides as its own library does, and as its rules say by hand."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bench.baselines.record_contextpilot import decided_by_library

from prism.bench.baselines.contextpilot import ContextIndex, Placed, RegionSchedule, distance
from prism.core.admission import Waiting

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "contextpilot.json").read_text())


def as_bytes(documents: Sequence[int]) -> list[bytes]:
    return [bytes([document]) for document in documents]


def decided(events: list[dict[str, Any]]) -> list[list[int]]:
    index, orders = ContextIndex(), []
    for event in events:
        if "gone" in event:
            index.remove(str(event["gone"]))
        else:
            documents = event["documents"]
            placed = index.align(str(event["arrives"]), as_bytes(documents))
            orders.append([documents[place] for place in placed.order])
    return orders


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_every_order_is_the_library_s(case: dict[str, Any]) -> None:
    assert decided(case["events"]) == case["orders"]


def test_the_recorded_cases_reorder_and_forget() -> None:
    """Else the comparison above would show nothing."""
    for case in CASES:
        written = [event["documents"] for event in case["events"] if "documents" in event]
        assert sum(order != before for order, before in zip(case["orders"], written, strict=True)) > 20
        assert any("gone" in event for event in case["events"])


@pytest.mark.skipif(importlib.util.find_spec("contextpilot") is None, reason="requirements/contextpilot.txt")
def test_the_library_still_decides_as_recorded() -> None:
    assert decided_by_library(CASES[0]["events"]) == CASES[0]["orders"]


def test_distance_counts_what_is_missing_and_then_what_is_moved() -> None:
    # Two of four in common, moved by 1 and by 2.
    assert distance([b"a", b"b", b"c", b"d"], [b"b", b"x", b"y", b"a"]) == pytest.approx(
        1 - 2 / 4 + 0.001 * (1 + 3) / 2
    )
    assert distance([b"a"], [b"b"]) == 1.0


def test_a_known_context_leads_and_the_rest_follows_as_written() -> None:
    index = ContextIndex()
    assert index.align("first", [b"a", b"b", b"c"]).order == (0, 1, 2)
    # b is not there; a and c stand as in the first one, x and y as they came.
    assert index.align("second", [b"x", b"c", b"y", b"a"]).order == (3, 1, 0, 2)


def test_a_context_that_is_gone_leads_nobody() -> None:
    index = ContextIndex()
    index.align("first", [b"a", b"b"])
    index.remove("first")
    assert index.align("second", [b"b", b"a"]).order == (0, 1)


def test_a_document_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        ContextIndex().align("first", [b"a", b"a"])


def test_the_largest_region_is_served_first_and_its_deepest_first_in_it() -> None:
    places = {
        "alone": Placed((), 1, (0,)),
        "shallow": Placed((), 2, (1, 0)),
        "deep": Placed((), 2, (1, 1, 0)),
        "nowhere": None,
    }
    order = RegionSchedule(places.get)
    for number, name in enumerate(["nowhere", "alone", "shallow", "deep"]):
        order.add(Waiting(name, number, 0, 0.0, 10))
    order.begin_pass()
    assert order.first().request == "deep"
    assert [one.request for one in order] == ["deep", "shallow", "nowhere", "alone"]
