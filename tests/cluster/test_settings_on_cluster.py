"""From `kubectl apply` of a PrismConfig to the ConfigMap that pods mount, with the operator as the chart runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from realcluster.cluster import Cluster
from realcluster.controlplane import KubectlFailed
from realcluster.installation import Installation
from realcluster.namespaces import wait_for
from realcluster.predictors import inference_service
from realcluster.settings import configmaps, documents_of, prism_config

CRD = "prismconfigs.serving.prism.dev"


def _stable(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """What the service `answers` is told; empty while it is told nothing."""
    found: dict[str, Any] = documents_of(cluster, namespace).get("answers", {}).get("stable", {})
    return found


def _quota(cluster: Cluster, namespace: str) -> float | None:
    scheduler = _stable(cluster, namespace).get("spec", {}).get("scheduler", {})
    found: float | None = scheduler.get("coldLane", {}).get("quota")
    return found


def _quota_is(cluster: Cluster, namespace: str, quota: float) -> Callable[[], bool]:
    return lambda: _quota(cluster, namespace) == quota


def _condition(cluster: Cluster, namespace: str, kind: str, name: str = "rag") -> dict[str, Any]:
    status = cluster.get("prismconfig", name, "-n", namespace).get("status", {})
    return next((one for one in status.get("conditions", []) if one["type"] == kind), {})


@pytest.fixture
def service(prism: Installation, namespace: str) -> str:
    """The namespace of an InferenceService `answers` that nothing deploys: what it is told is looked at."""
    labels = {"serving.prism.dev/config": "rag"}
    prism.cluster.apply(inference_service("answers", namespace, "any", labels=labels))
    return namespace


def test_a_config_is_in_the_configmap_within_two_seconds(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    began = time.monotonic()
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10, every=0.05)
    assert time.monotonic() - began < 2


def test_an_edit_is_in_the_configmap_within_two_seconds(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    cluster.apply(prism_config(service, quota=0))
    began = time.monotonic()
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0), seconds=10, every=0.05)
    assert time.monotonic() - began < 2, "and 0 is a value"


def test_of_two_edits_within_a_tenth_of_a_second_the_later_stands(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    path = f"/apis/serving.prism.dev/v1alpha1/namespaces/{service}/prismconfigs/rag"
    with cluster.api_server.http() as client:
        for quota in (0.3, 0.4):
            patch = {"spec": {"scheduler": {"coldLane": {"quota": quota}}}}
            headers = {"Content-Type": "application/merge-patch+json"}
            assert client.patch(path, content=json.dumps(patch), headers=headers).status_code == 200
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.4), seconds=10)
    time.sleep(2)
    assert _quota(cluster, service) == 0.4


def test_a_service_that_appears_later_gets_its_settings(prism: Installation, namespace: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(namespace, quota=0.25))
    wait_for("the config is accepted", lambda: _condition(cluster, namespace, "Accepted"), seconds=10)
    labels = {"serving.prism.dev/config": "rag"}
    cluster.apply(inference_service("answers", namespace, "any", labels=labels))
    wait_for("the ConfigMap follows", _quota_is(cluster, namespace, 0.25), seconds=10)


def test_deleting_a_config_returns_its_service_to_explicit_defaults(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    cluster.kubectl("delete", "prismconfig", "rag", "-n", service, "--timeout=20s")
    wait_for("it has other settings", lambda: _quota(cluster, service) != 0.25, seconds=10)
    assert "answers" in documents_of(cluster, service), "the key stays: a missing file would keep the last settings"


def test_a_configmap_edited_by_hand_is_put_back(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    (name,) = [one for one, data in configmaps(cluster, service).items() if "answers.yaml" in data]
    patch = json.dumps({"data": {"answers.yaml": "stable: {}"}})
    cluster.kubectl("patch", "configmap", name, "-n", service, "--type=merge", "-p", patch)
    wait_for("it is put back", _quota_is(cluster, service, 0.25), seconds=20)


def test_a_configmap_deleted_by_hand_is_made_again(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    (name,) = [one for one, data in configmaps(cluster, service).items() if "answers.yaml" in data]
    cluster.kubectl("delete", "configmap", name, "-n", service)
    wait_for("it is made again", _quota_is(cluster, service, 0.25), seconds=20)


def test_the_younger_of_two_configs_says_conflict(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    time.sleep(1.1)  # creation is kept to the second
    cluster.apply(prism_config(service, name="late", select="rag", quota=0.5))
    conflict = lambda: _condition(cluster, service, "Ready", "late").get("reason") == "Conflict"  # noqa: E731
    wait_for("the younger says Conflict", conflict, seconds=20)
    assert "rag" in _condition(cluster, service, "Ready", "late")["message"]
    assert _quota(cluster, service) == 0.25


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"scheduler": {"coldLane": {"quota": 1.5}}}, "quota"),
        ({"scheduler": {"weights": {"active": 1, "predicted": 10, "queued": 1}}}, "weights"),
        ({"scheduler": {"coldlane": {"quota": 0.5}}}, "coldlane"),
        ({"retention": {"policy": "Newest"}}, "policy"),
    ],
)
def test_the_api_server_refuses_a_wrong_config_and_names_the_field(
    prism: Installation, namespace: str, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(KubectlFailed, match=field):
        prism.cluster.apply(prism_config(namespace, **spec), namespace=namespace)


def test_a_config_smuggled_past_admission_leaves_the_last_good_one_in_force(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    crd = cluster.get("crd", CRD)
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    try:
        _replace_schema(cluster, open_schema)
        cluster.apply(prism_config(service, scheduler={"coldLane": {"quota": "much"}}))
        refused = lambda: _condition(cluster, service, "Accepted").get("status") == "False"  # noqa: E731
        wait_for("it is refused", refused, seconds=30)
        assert "quota" in _condition(cluster, service, "Accepted")["message"]
        assert _quota(cluster, service) == 0.25
        cluster.apply(prism_config(service, quota=0.5))
        wait_for("the next good one takes effect", _quota_is(cluster, service, 0.5), seconds=20)
    finally:
        _replace_schema(cluster, crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def _replace_schema(cluster: Cluster, schema: dict[str, Any]) -> None:
    where = "/spec/versions/0/schema/openAPIV3Schema"
    patch = json.dumps([{"op": "replace", "path": where, "value": schema}])
    cluster.kubectl("patch", "crd", CRD, "--type=json", "-p", patch)
    time.sleep(2)  # the API server takes a new schema into use a moment later


def test_a_namespace_with_configs_in_it_can_be_deleted(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    began = time.monotonic()
    cluster.kubectl("delete", "namespace", service, "--timeout=60s")
    assert time.monotonic() - began < 60
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": service}})


def _ending_namespaces(cluster: Cluster) -> list[str]:
    found = cluster.get("namespaces")["items"]
    return [one["metadata"]["name"] for one in found if "deletionTimestamp" in one["metadata"]]


@pytest.mark.long
def test_nothing_is_written_in_a_quiet_minute(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    wait_for("namespaces of other tests are gone", lambda: not _ending_namespaces(cluster), seconds=90)
    time.sleep(5)
    began = cluster.api_server.audit_position()
    time.sleep(60)
    account = f"system:serviceaccount:{prism.namespace}:prism-operator"
    written = [one["objectRef"]["resource"] for one in cluster.api_server.writes(account, after=began)]
    assert set(written) == {"leases"}, "a leader says that it lives, and writes nothing else"


def test_the_columns_of_kubectl_get_say_how_it_stands(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("it is ready", lambda: _condition(cluster, service, "Ready"), seconds=20)
    header, row = cluster.kubectl("get", "pcfg", "-n", service).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "COLD-QUOTA", "APPLIED", "HIT-RATE", "P99-TTFT", "AGE"]
    assert row.split()[0] == "rag"


def test_explain_tells_what_a_field_means(prism: Installation) -> None:
    said = prism.cluster.kubectl("explain", "prismconfig.spec.scheduler.coldLane.quota")
    assert len(said.split("DESCRIPTION:")[1].split()) > 5


def test_the_document_names_the_config_and_the_generation_it_comes_from(prism: Installation, service: str) -> None:
    cluster = prism.cluster
    cluster.apply(prism_config(service, quota=0.25))
    wait_for("the ConfigMap follows", _quota_is(cluster, service, 0.25), seconds=10)
    config = cluster.get("prismconfig", "rag", "-n", service)
    stable = _stable(cluster, service)
    assert (stable["uid"], stable["generation"]) == (config["metadata"]["uid"], config["metadata"]["generation"])
