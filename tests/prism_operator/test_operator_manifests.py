"""The objects that the operator writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_operator.manifests import admin_policy, disruption_budgets, settings_maps, shard_of
from prism_operator.names import SETTINGS_NAMES
from prism_operator.objects import Meta, Owned, Service

NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,40}[a-z0-9])?", fullmatch=True)


def policy(**values: Any) -> dict[str, Any]:
    given_: dict[str, Any] = {
        "operator_namespace": "prism-system",
        "operator_labels": {"app.kubernetes.io/component": "operator"},
        "serving_ports": (8080,),
        "admin_port": 8090,
        **values,
    }
    return admin_policy("team-a", ["s", "r"], **given_)


def open_to_all(policy: dict[str, Any]) -> list[dict[str, Any]]:
    return [port for rule in policy["spec"]["ingress"] if "from" not in rule for port in rule["ports"]]


@given(st.dictionaries(NAMES, st.text(max_size=20), max_size=30))
def test_every_document_stands_once_in_the_map_of_its_services_name(documents: dict[str, str]) -> None:
    maps = settings_maps("team-a", documents)
    found = {key: (name, text) for name, body in maps.items() for key, text in body["data"].items()}
    assert found == {f"{name}.yaml": (SETTINGS_NAMES[shard_of(name)], text) for name, text in documents.items()}


@given(NAMES, st.sets(NAMES, max_size=20))
def test_a_key_never_moves_whatever_else_there_is(name: str, others: set[str]) -> None:
    alone = settings_maps("team-a", {name: "x"})
    with_others = settings_maps("team-a", dict.fromkeys({name, *others}, "x"))
    assert set(alone) <= set(with_others)


def test_names_spread_over_all_maps() -> None:
    assert len({shard_of(f"service-{number}") for number in range(200)}) == len(SETTINGS_NAMES)


def test_the_admin_port_is_open_to_the_operator_alone() -> None:
    rules = [rule for rule in policy()["spec"]["ingress"] if {"port": 8090, "protocol": "TCP"} in rule["ports"]]
    (only,) = rules
    assert only["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "prism-system"}
    assert open_to_all(policy()) == [{"port": 8080, "protocol": "TCP"}]


def test_pods_of_one_engine_may_talk_to_each_other_but_not_on_the_admin_port() -> None:
    (ranges,) = [rule["ports"] for rule in policy()["spec"]["ingress"] if "endPort" in rule["ports"][0]]
    covered = {port for one in ranges if one["protocol"] == "TCP" for port in range(one["port"], one["endPort"] + 1)}
    assert covered == set(range(1, 65536)) - {8090}


@pytest.mark.parametrize(("most", "count"), [(1, 0), (2, 1)])
def test_a_budget_is_for_several_replicas(make_service: Callable[..., Service], most: int, count: int) -> None:
    assert len(disruption_budgets("team-a", [make_service("s", maxReplicas=most)], [])) == count


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"serving.kserve.io/inferenceservice": "s"}},
        {"matchLabels": {"app": "isvc.s-predictor"}},
        {"matchExpressions": [{"key": "serving.kserve.io/inferenceservice", "operator": "In", "values": ["s"]}]},
        {},
    ],
)
def test_a_pod_never_gets_a_second_budget(make_service: Callable[..., Service], selector: dict[str, Any]) -> None:
    theirs = Owned(Meta("team-a", "theirs", "1"), {"selector": selector, "minAvailable": 1})
    assert disruption_budgets("team-a", [make_service("s", minReplicas=3)], [theirs]) == {}


def test_a_budget_of_another_service_does_not_count(make_service: Callable[..., Service]) -> None:
    theirs = Owned(Meta("team-a", "theirs", "1"), {"selector": {"matchLabels": {"app": "isvc.t-predictor"}}})
    assert set(disruption_budgets("team-a", [make_service("s", minReplicas=3)], [theirs])) == {"prism-s"}


def test_kubernetes_own_schemas_take_them_all(make_service: Callable[..., Service]) -> None:
    bodies = [
        *settings_maps("team-a", {"s": "stable: {}"}).values(),
        policy(),
        *disruption_budgets("team-a", [make_service("s", minReplicas=2)], []).values(),
    ]
    for body in bodies:
        kubernetes_validate.validate(body, "1.34", strict=True)
