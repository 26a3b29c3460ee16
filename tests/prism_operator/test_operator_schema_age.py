"""Whether the cluster's PrismConfig is as new as the operator."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from prism.config.crd import custom_resource_definition
from prism_operator.schema_age import outdated


@pytest.fixture
def served() -> dict[str, Any]:
    version = custom_resource_definition()["spec"]["versions"][0]
    schema: dict[str, Any] = copy.deepcopy(version["schema"]["openAPIV3Schema"])
    return schema


def spec_of(served: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = served["properties"]["spec"]["properties"]
    return found


def test_the_operators_own_schema_is_not_outdated(served: dict[str, Any]) -> None:
    assert outdated(served) == ""


def test_a_newer_schema_is_not_outdated(served: dict[str, Any]) -> None:
    spec_of(served)["aging"] = {"type": "object"}
    assert outdated(served) == ""


def test_a_field_that_would_be_dropped_is_named(served: dict[str, Any]) -> None:
    del spec_of(served)["scheduler"]["properties"]["coldLane"]["properties"]["quota"]
    assert "would drop spec.scheduler.coldLane.quota" in outdated(served)


def test_a_value_that_would_be_refused_is_named(served: dict[str, Any]) -> None:
    spec_of(served)["scheduler"]["properties"]["order"]["enum"].remove("Paper")
    assert "spec.scheduler.order=Paper" in outdated(served)


def test_a_cluster_without_the_kind_is_told_so() -> None:
    assert "does not serve prismconfigs.serving.prism.dev" in outdated({})
