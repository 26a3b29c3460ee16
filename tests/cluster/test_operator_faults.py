"""The operator when something fails around it: what was asked for comes about all the same, and once."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from realcluster.cluster import Cluster
from realcluster.installation import Installation
from realcluster.namespaces import wait_for
from realcluster.predictors import inference_service
from realcluster.settings import documents_of, prism_config

OPERATOR = "prism-operator"


def _quota(cluster: Cluster, namespace: str, service: str) -> float | None:
    stable = documents_of(cluster, namespace).get(service, {}).get("stable", {})
    found: float | None = stable.get("spec", {}).get("scheduler", {}).get("coldLane", {}).get("quota")
    return found


def _wait_quota(cluster: Cluster, namespace: str, quota: float, *, seconds: float, service: str = "answers") -> float:
    """Seconds until the ConfigMap has that quota."""
    began = time.monotonic()
    wait_for("the ConfigMap follows", lambda: _quota(cluster, namespace, service) == quota, seconds=seconds)
    return time.monotonic() - began


def _holder(prism: Installation) -> str:
    found: str = prism.cluster.get("lease", OPERATOR, "-n", prism.namespace)["spec"].get("holderIdentity", "")
    return found


def _kill(prism: Installation, pod: str) -> None:
    prism.cluster.kubectl("delete", "pod", pod, "-n", prism.namespace, "--grace-period=0", "--force")


def _scale(prism: Installation, replicas: int) -> None:
    where = ["deployment", OPERATOR, "-n", prism.namespace]
    prism.cluster.kubectl("scale", *where, f"--replicas={replicas}")
    prism.cluster.kubectl("rollout", "status", *where, "--timeout=60s")
    wait_for("surplus pods are gone", lambda: len(prism.operator_pods()) == replicas, seconds=60)


@pytest.fixture
def service(prism: Installation, namespace: str) -> str:
    """The namespace of an InferenceService `answers` with settings in force."""
    labels = {"serving.prism.dev/config": "rag"}
    prism.cluster.apply(inference_service("answers", namespace, "any", labels=labels))
    prism.cluster.apply(prism_config(namespace, quota=0.25))
    _wait_quota(prism.cluster, namespace, 0.25, seconds=30)
    return namespace


def test_an_operator_killed_in_the_middle_of_its_work_finishes_it(prism: Installation, namespace: str) -> None:
    cluster, names = prism.cluster, [f"answers-{number}" for number in range(20)]
    labels = {"serving.prism.dev/config": "rag"}
    cluster.apply(*(inference_service(name, namespace, "any", labels=labels) for name in names))
    cluster.apply(prism_config(namespace, quota=0.5))
    _kill(prism, prism.operator_pods()[0]["metadata"]["name"])
    for name in names:
        _wait_quota(cluster, namespace, 0.5, seconds=60, service=name)


def test_of_two_replicas_one_writes_and_the_other_takes_over_within_twenty_seconds(
    prism: Installation, service: str
) -> None:
    cluster = prism.cluster
    _scale(prism, 2)
    try:
        wait_for("a replica holds the Lease", lambda: _holder(prism), seconds=30)
        holder, position = _holder(prism), cluster.api_server.audit_position()
        cluster.apply(prism_config(service, quota=0.5))
        _wait_quota(cluster, service, 0.5, seconds=10)
        assert _writers(prism, position) == {holder}
        _kill(prism, holder)
        cluster.apply(prism_config(service, quota=0.75))
        assert _wait_quota(cluster, service, 0.75, seconds=40) < 20
        assert _holder(prism) != holder
    finally:
        _scale(prism, 1)


def _writers(prism: Installation, position: int) -> set[str]:
    """Pods of the operator that have written anything but their Lease since then."""
    account = f"system:serviceaccount:{prism.namespace}:{OPERATOR}"
    return {
        event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0]
        for event in prism.cluster.api_server.writes(account, after=position)
        if event["objectRef"]["resource"] != "leases"
    }


def test_a_terminated_operator_hands_over_at_once(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    (pod,) = prism.operator_pods()
    began = time.monotonic()
    cluster.kubectl("delete", "pod", pod["metadata"]["name"], "-n", prism.namespace, "--timeout=30s")
    assert time.monotonic() - began < 10, "it ends when it is asked to"
    cluster.apply(prism_config(service, quota=0.5))
    _wait_quota(cluster, service, 0.5, seconds=30)


def test_an_edit_right_after_the_api_server_came_back_is_seen(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.api_server.restart()
    cluster.apply(prism_config(service, quota=0.5))
    _wait_quota(cluster, service, 0.5, seconds=60)


def test_an_edit_after_etcd_stood_still_for_thirty_seconds_is_seen(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.api_server.etcd.send(signal.SIGSTOP)
    try:
        time.sleep(30)
    finally:
        cluster.api_server.etcd.send(signal.SIGCONT)
    cluster.api_server.wait_ready()
    cluster.apply(prism_config(service, quota=0.5))
    _wait_quota(cluster, service, 0.5, seconds=60)


def test_versions_that_etcd_has_forgotten_are_listed_again(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    with _cut_off(prism):
        _churn(cluster, service)
        cluster.api_server.compact()
        cluster.api_server.restart()
        cluster.apply(prism_config(service, quota=0.5))
    _wait_quota(cluster, service, 0.5, seconds=120)


def _churn(cluster: Cluster, namespace: str) -> None:
    for number in range(5):
        cluster.kubectl("annotate", "prismconfig", "rag", "-n", namespace, "--overwrite", f"churn={number}")


@contextmanager
def _cut_off(prism: Installation) -> Iterator[None]:
    """Drops every packet between the operator's pod and the API server, without a word to either."""
    (pod,) = prism.operator_pods()
    address, run = pod["status"]["podIP"], prism.cluster.namespaces.run
    rules = [("INPUT", "-s", address), ("OUTPUT", "-d", address)]
    for chain, *match in rules:
        run("iptables", "-I", chain, *match, "-j", "DROP")
    try:
        yield
    finally:
        for chain, *match in rules:
            run("iptables", "-D", chain, *match, "-j", "DROP")


def _edit_behind_a_cut(prism: Installation, namespace: str, seconds: float) -> float:
    """Seconds from the network's return to the ConfigMap, of an edit made while it was away."""
    with _cut_off(prism):
        time.sleep(seconds / 2)
        prism.cluster.apply(prism_config(namespace, quota=0.5))
        time.sleep(seconds / 2)
    return _wait_quota(prism.cluster, namespace, 0.5, seconds=150)


def test_an_edit_behind_a_silent_watch_is_seen_once_the_network_returns(prism: Installation, service: str) -> None:
    assert _edit_behind_a_cut(prism, service, 30) < 120


@pytest.mark.long
def test_an_edit_behind_five_minutes_of_silence_is_seen_within_two(prism: Installation, service: str) -> None:
    assert _edit_behind_a_cut(prism, service, 300) < 120


def test_a_status_that_somebody_else_wrote_is_put_right(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    wrong: dict[str, Any] = {"status": {"applied": "7/7"}}
    where = ["prismconfig", "rag", "-n", service, "--subresource=status", "--type=merge"]
    cluster.kubectl("patch", *where, "-p", json.dumps(wrong))
    cluster.apply(prism_config(service, quota=0.5))
    _wait_quota(cluster, service, 0.5, seconds=20)

    def applied() -> bool:
        found: str = cluster.get("prismconfig", "rag", "-n", service)["status"]["applied"]
        return found == "0/0"

    wait_for("the status is the operator's again", applied, seconds=30)
