"""What the API server says of a PrismConfig, by the CRD alone: no operator runs here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from realcluster.cluster import HostApiServer


def config(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A PrismConfig."""
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "serving.prism.dev/v1alpha1", "kind": "PrismConfig", "metadata": metadata, "spec": spec}


def tried(server: HostApiServer, spec: dict[str, Any]) -> str:
    """What kubectl says; nothing is kept."""
    body = json.dumps(config("tried", spec))
    return server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=body, check=False)


@pytest.fixture
def kept(with_kinds: HostApiServer) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Applies a spec as the PrismConfig `kept`, for the length of the test."""
    yield lambda spec: print(with_kinds.apply(config("kept", spec)))
    with_kinds.kubectl("delete", "prismconfig", "kept", "-n", "default", "--ignore-not-found")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"scheduler": {"weights": {"active": 5}}}, "raise active or lower predicted"),
        ({"scheduler": {"weights": {"predicted": 1}}}, "raise predicted or lower queued"),
        ({"scheduler": {"coldLane": {"quota": 10}}}, "write 0.1 for 10 %"),
        ({"scheduler": {"coldLane": {"quota": -0.1}}}, "from 0 to 1"),
        ({"scheduler": {"coldLane": {"qouta": 0.1}}}, 'unknown field "spec.scheduler.coldLane.qouta"'),
        ({"scheduler": {"order": "prism"}}, 'supported values: "Prism"'),
        ({"scheduler": {"coldLane": {"maxWaitSeconds": 0}}}, "should be greater than 0"),
        ({"rollout": {"canary": 0}}, "a number of pods from 1"),
        ({"rollout": {"canary": "0%"}}, 'from "1%" to "100%"'),
        ({"rollout": {"canary": "101%"}}, 'from "1%" to "100%"'),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "need values"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}, "take no values"),
        ({"selector": {"matchLabels": {f"l{n}": "x" for n in range(33)}}}, "must have at most 32 items"),
        ({"limits": {"maxWaitingRequests": "many"}}, "must be of type integer"),
    ],
)
def test_a_wrong_spec_is_refused_with_what_to_do(with_kinds: HostApiServer, spec: dict[str, Any], said: str) -> None:
    assert said in tried(with_kinds, spec)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"scheduler": {"coldLane": {"quota": 0}, "lexicographic": False}, "limits": {"maxWaitingRequests": 0}},
        {"scheduler": {"weights": {"active": 3, "predicted": 2, "queued": 0}}},
        {"rollout": {"canary": "25%"}},
        {"rollout": {"canary": 2}},
        {"tracing": {"samplingRatio": None}},
        {"limits": {"maxWaitingPromptTokens": 1048576}},
    ],
)
def test_a_right_spec_is_taken(with_kinds: HostApiServer, spec: dict[str, Any]) -> None:
    assert "created (server dry run)" in tried(with_kinds, spec)


def test_three_hundred_kilobytes_are_refused_with_the_bound(with_kinds: HostApiServer) -> None:
    expressions = [{"key": f"k{n}", "operator": "In", "values": ["x" * 60]} for n in range(3000)]
    assert "must have at most 16 items" in tried(with_kinds, {"selector": {"matchExpressions": expressions}})


def test_zero_and_false_come_back_as_they_were_and_nothing_is_added(
    with_kinds: HostApiServer, kept: Callable[[dict[str, Any]], None]
) -> None:
    spec = {"scheduler": {"coldLane": {"quota": 0}, "lexicographic": False}, "tracing": {"samplingRatio": 0}}
    kept(spec)
    assert with_kinds.get("prismconfig", "kept", "-n", "default")["spec"] == spec


def test_the_columns_are_there_and_the_short_name(
    with_kinds: HostApiServer, kept: Callable[[dict[str, Any]], None]
) -> None:
    kept({})
    head = with_kinds.kubectl("get", "pcfg", "-n", "default").splitlines()[0].split()
    assert head == ["NAME", "READY", "REASON", "COLD-QUOTA", "APPLIED", "HIT-RATE", "P99-TTFT", "AGE"]


def test_explain_tells_meaning_and_default(with_kinds: HostApiServer) -> None:
    text = " ".join(with_kinds.kubectl("explain", "prismconfig.spec.scheduler.coldLane.quota").split())
    assert "Share of admissions." in text
    assert "Default: 0.1." in text
