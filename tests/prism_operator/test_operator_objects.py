"""What is read of the cluster's objects."""

from __future__ import annotations

from typing import Any

import pytest

from prism_operator.cache import Cache
from prism_operator.objects import Meta, Owned, is_predictor, read_owned, read_pod, read_service


def pod(labels: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    named = {"serving.kserve.io/inferenceservice": "s", **(labels or {})}
    return {"metadata": {"namespace": "team-a", "name": "p", "labels": named}, "status": status}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"component": "predictor", "app": "isvc.s-predictor"}, True),
        ({"component": "transformer"}, False),
        ({"component": "predictor", "app": "isvc.s-predictor-worker"}, False),
        ({}, True),
    ],
    ids=["predictor", "transformer", "worker of several nodes", "unlabelled"],
)
def test_only_pods_that_serve_requests_are_predictors(labels: dict[str, str], expected: bool) -> None:
    assert is_predictor(read_pod(pod(labels))) is expected


def test_a_restarted_container_is_another_life() -> None:
    lives = {read_pod(pod(containerStatuses=[{"name": "c", "restartCount": count}])).life for count in (0, 1)}
    assert len(lives) == 2


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_on_its_way_out(phase: str) -> None:
    assert read_pod(pod(phase=phase)).going


@pytest.mark.parametrize(
    "broken", [{}, {"metadata": None, "spec": "x", "status": []}, {"spec": {"predictor": {"minReplicas": "3"}}}]
)
def test_what_is_not_there_or_of_another_type_reads_as_absent(broken: dict[str, Any]) -> None:
    service = read_service(broken)
    assert (service.runtime, service.most_replicas) == ("", 1)


def test_managed_fields_and_the_like_are_not_kept() -> None:
    data = {
        "metadata": {"name": "m", "managedFields": ["x" * 1000], "annotations": {"a": "y" * 1000}},
        "data": {"k": "v"},
    }
    assert read_owned(data) == Owned(Meta("", "m", ""), {"k": "v"})


def test_a_list_that_lacks_an_object_removes_it_and_tells() -> None:
    heard: list[tuple[Owned | None, Owned | None]] = []
    cache: Cache[Owned] = Cache(lambda old, new: heard.append((old, new)))
    one, two = (Owned(Meta("team-a", name, "1"), {}) for name in ("one", "two"))
    cache.replace([one, two])
    heard.clear()
    cache.replace([two])
    assert heard == [(one, None)]
    assert cache.all() == [two]


def test_a_list_of_one_namespace_leaves_the_others() -> None:
    cache: Cache[Owned] = Cache()
    cache.put(Owned(Meta("team-b", "other", "1"), {}))
    cache.replace([], "team-a")
    assert len(cache) == 1
