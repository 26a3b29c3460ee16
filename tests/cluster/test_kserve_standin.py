"""The stand-in for KServe's controller does what KServe 0.21 does, on the documents alone."""

from __future__ import annotations

from typing import Any

import pytest

from realcluster.kserve_standin import NotServable, container, deployment, pod_spec, service, status


def _runtime(**container_fields: Any) -> dict[str, Any]:
    own = {"name": "kserve-container", "args": ["--model_name={{.Name}}"], "image": "runtime", **container_fields}
    volumes = [{"name": "settings", "configMap": {"name": "{{.Name}}"}}]
    return {"kind": "ServingRuntime", "metadata": {"name": "r"}, "spec": {"containers": [own], "volumes": volumes}}


def _service(**model: Any) -> dict[str, Any]:
    whole = {"modelFormat": {"name": "huggingface"}, "runtime": "r", "storageUri": "pvc://claim/a/b", **model}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "answers", "namespace": "team", "uid": "u", "generation": 3, "labels": {"team": "a"}},
        "spec": {"predictor": {"model": whole}},
    }


def test_arguments_of_the_service_come_behind_those_of_the_runtime() -> None:
    assert container(_service(args=["--seed=1"]), _runtime())["args"] == ["--model_name=answers", "--seed=1"]


def test_the_name_is_filled_in_in_containers_and_not_in_volumes() -> None:
    assert pod_spec(_service(), _runtime())["volumes"][0]["configMap"]["name"] == "{{.Name}}"


def test_environment_merges_by_name() -> None:
    runtime = _runtime(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    merged = container(_service(env=[{"name": "B", "value": "3"}]), runtime)["env"]
    assert merged == [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]


def test_storage_lands_where_predictors_look_for_models() -> None:
    (mount,) = pod_spec(_service(), _runtime())["containers"][0]["volumeMounts"]
    assert (mount["mountPath"], mount["subPath"], mount["readOnly"]) == ("/mnt/models", "a/b", True)


def test_storage_that_it_cannot_mount_is_refused() -> None:
    with pytest.raises(NotServable, match="pvc://"):
        pod_spec(_service(storageUri="s3://bucket/model"), _runtime())


def test_a_runtime_without_a_probe_gets_a_bare_tcp_check() -> None:
    assert container(_service(), _runtime())["readinessProbe"] == {"tcpSocket": {"port": 8080}}


def test_a_runtimes_own_probe_stays() -> None:
    probe = {"httpGet": {"path": "/v2/health/ready", "port": 8080}}
    assert container(_service(), _runtime(readinessProbe=probe))["readinessProbe"] == probe


def test_pods_carry_the_labels_by_which_kserve_finds_them() -> None:
    labels = deployment(_service(), _runtime())["spec"]["template"]["metadata"]["labels"]
    assert labels["serving.kserve.io/inferenceservice"] == "answers"
    assert (labels["component"], labels["app"], labels["team"]) == ("predictor", "isvc.answers-predictor", "a")


def test_the_service_listens_on_port_80() -> None:
    (port,) = service(_service(), _runtime(ports=[{"name": "http1", "containerPort": 8080}]))["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, 8080)


@pytest.mark.parametrize(("available", "ready"), [("True", "True"), ("False", "False")])
def test_ready_follows_the_deployment(available: str, ready: str) -> None:
    found = {"status": {"conditions": [{"type": "Available", "status": available}]}}
    said = status(_service(), found, _runtime())
    assert {one["type"]: one["status"] for one in said["conditions"]}["Ready"] == ready
    assert said["observedGeneration"] == 3
