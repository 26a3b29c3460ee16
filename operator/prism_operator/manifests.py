"""The objects that the operator writes. Pure: what should be, from what is known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from prism_operator.names import (
    ADMIN_POLICY,
    FIELD_MANAGER,
    LABEL_APP,
    LABEL_MANAGED_BY,
    LABEL_POD_COMPONENT,
    LABEL_SERVICE,
    PREDICTOR,
    SETTINGS_SHARDS,
    budget_name,
    document_key,
    predictor_app,
    shard_name,
)
from prism_operator.objects import Json, Owned, Service

MANAGED = {LABEL_MANAGED_BY: FIELD_MANAGER}
MANAGED_SELECTOR = f"{LABEL_MANAGED_BY}={FIELD_MANAGER}"

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def shard_of(service: str) -> int:
    """Which of the eight ConfigMaps holds a service's document: by its name alone, so that it never moves."""
    return hashlib.sha256(service.encode()).digest()[0] % SETTINGS_SHARDS


def settings_maps(namespace: str, documents: Mapping[str, str]) -> dict[str, Json]:
    """The ConfigMaps of a namespace, by name, from each service's document. A shard with no document is left out."""
    shards: dict[int, dict[str, str]] = {}
    for service in sorted(documents):
        shards.setdefault(shard_of(service), {})[document_key(service)] = documents[service]
    return {
        shard_name(shard): {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _metadata(namespace, shard_name(shard)),
            "data": data,
        }
        for shard, data in shards.items()
    }


def admin_policy(
    namespace: str,
    services: Iterable[str],
    *,
    operator_namespace: str,
    operator_labels: Mapping[str, str],
    serving_ports: Sequence[int],
    admin_port: int,
) -> Json:
    """The NetworkPolicy that keeps the admin port to the operator.

    The serving ports stay open to everybody. Predictor pods of one namespace may talk to each other on all ports but
    the admin port: an engine that spans several pods does.
    """
    operator = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: operator_namespace}},
        "podSelector": {"matchLabels": dict(operator_labels)},
    }
    peers = {"podSelector": {"matchExpressions": [{"key": LABEL_SERVICE, "operator": "Exists"}]}}
    spec = {
        "podSelector": {
            "matchLabels": {LABEL_POD_COMPONENT: PREDICTOR},
            "matchExpressions": [{"key": LABEL_SERVICE, "operator": "In", "values": sorted(services)}],
        },
        "policyTypes": ["Ingress"],
        "ingress": [
            {"ports": [{"port": port, "protocol": "TCP"} for port in serving_ports]},
            {"from": [operator], "ports": [{"port": admin_port, "protocol": "TCP"}]},
            {"from": [peers], "ports": _all_ports_but(admin_port)},
        ],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace, ADMIN_POLICY),
        "spec": spec,
    }


def disruption_budgets(namespace: str, services: Iterable[Service], foreign: Sequence[Owned]) -> dict[str, Json]:
    """A PodDisruptionBudget for each service that may have several replicas, by name.

    A pod of two budgets cannot be evicted at all, so a service with a budget of somebody else's gets none.
    """
    return {
        budget_name(service.meta.name): _budget(namespace, service.meta.name)
        for service in services
        if service.most_replicas > 1 and not any(_covers(budget, service.meta.name) for budget in foreign)
    }


def _budget(namespace: str, service: str) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(namespace, budget_name(service)),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": predictor_labels(service)}},
    }


def predictor_labels(service: str) -> dict[str, str]:
    """The labels that KServe gives to a service's predictor pods."""
    return {LABEL_SERVICE: service, LABEL_POD_COMPONENT: PREDICTOR}


def _covers(budget: Owned, service: str) -> bool:
    """Whether a budget is for a service's predictor, as far as the labels that KServe gives can tell."""
    selector = budget.content.get("selector") or {}
    wanted: Mapping[str, str] = selector.get("matchLabels") or {}
    known = {**predictor_labels(service), LABEL_APP: predictor_app(service)}
    if selector.get("matchExpressions"):
        return any(
            requirement.get("key") == LABEL_SERVICE and service in (requirement.get("values") or ())
            for requirement in selector["matchExpressions"]
        )
    return not wanted or (any(key in known for key in wanted) and all(known.get(k, v) == v for k, v in wanted.items()))


def _all_ports_but(port: int) -> list[Json]:
    ranges = ((1, port - 1), (port + 1, 65535))
    return [
        {"port": first, "endPort": last, "protocol": protocol}
        for protocol in ("TCP", "UDP")
        for first, last in ranges
        if first <= last
    ]


def _metadata(namespace: str, name: str) -> Json:
    return {"namespace": namespace, "name": name, "labels": dict(MANAGED)}
