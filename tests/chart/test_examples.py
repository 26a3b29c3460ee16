"""The manifests of docs/examples: every one passes the schemas of the API server that will take it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prism.config.document import parse_document
from prism.config.schema import PrismSpec
from prism.telemetry import metrics

Manifest = dict[str, Any]
Validate = Callable[[Manifest], list[str]]
FOLDER = Path(__file__).parents[2] / "docs" / "examples"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
RUNTIMES = ("prism-gpu", "prism-cpu")


def manifests(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def all_of(kind: str) -> list[Manifest]:
    return [one for name in FILES for one in manifests(name) if one["kind"] == kind]


@pytest.mark.parametrize("name", FILES)
def test_manifest_passes_its_schema(validate: Validate, name: str) -> None:
    assert {one["kind"]: validate(one) for one in manifests(name)} == {one["kind"]: [] for one in manifests(name)}


def test_a_misspelt_field_is_noticed(validate: Validate) -> None:
    (service,) = manifests("smollm2-cpu.yaml")
    service["spec"]["predictor"]["model"]["storageURI"] = service["spec"]["predictor"]["model"].pop("storageUri")
    assert "storageURI" in str(validate(service))


@pytest.mark.parametrize("name", FILES)
def test_readme_lists_the_file(name: str) -> None:
    assert f"[{name}]({name})" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("config", all_of("PrismConfig"), ids=lambda one: one["metadata"]["name"])
def test_settings_are_ones_that_a_predictor_takes(config: Manifest) -> None:
    PrismSpec.model_validate(config["spec"])


def test_selected_label_is_one_that_a_config_selects() -> None:
    selected = {one["spec"]["selector"]["matchLabels"]["serving.prism.dev/config"] for one in all_of("PrismConfig")}
    asked = {one["metadata"].get("labels", {}).get("serving.prism.dev/config") for one in all_of("InferenceService")}
    assert asked - {None} <= selected


@pytest.mark.parametrize("service", all_of("InferenceService"), ids=lambda one: one["metadata"]["name"])
def test_service_names_a_runtime_that_exists_and_gives_storage(service: Manifest) -> None:
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] in (*RUNTIMES, *(one["metadata"]["name"] for one in all_of("ServingRuntime")))
    # Without a storageUri KServe's webhook puts its agent into the pod.
    assert model["storageUri"].startswith(("hf://", "pvc://"))
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"


@pytest.mark.parametrize("service", all_of("InferenceService"), ids=lambda one: one["metadata"]["name"])
def test_answers_end_before_the_pod_is_killed(service: Manifest) -> None:
    predictor = service["spec"]["predictor"]
    given = [arg.partition("=")[2] for arg in predictor["model"].get("args", []) if arg.startswith("--grace-period=")]
    assert int(given[-1] if given else 25) < predictor.get("terminationGracePeriodSeconds", 30)


def test_autoscaling_asks_for_the_queue_metric_of_its_own_service() -> None:
    (service,) = manifests("autoscaling-keda.yaml")
    (metric,) = service["spec"]["predictor"]["autoScaling"]["metrics"]
    name = service["metadata"]["name"]
    assert metric["external"]["metric"]["query"] == f'sum({metrics.WAITING_REQUESTS}{{{metrics.MODEL_NAME}="{name}"}})'


def test_multi_node_head_is_the_gpu_runtime_of_the_chart(render: Callable[..., list[Manifest]]) -> None:
    (mine,) = all_of("ServingRuntime")
    (chart,) = (one for one in render() if one["metadata"]["name"] == "prism-gpu")
    for field in ("volumes", "nodeSelector", "tolerations", "labels", "annotations"):
        assert mine["spec"][field] == chart["spec"][field], field
    (head,), (gpu,) = mine["spec"]["containers"], chart["spec"]["containers"]
    assert [one for one in head["env"] if one["name"] != "POD_IP"] == gpu["env"]
    for field in ("image", "volumeMounts", "securityContext", "ports", "readinessProbe", "livenessProbe"):
        assert head[field] == gpu[field], field


def test_settings_beside_the_router_are_a_document_that_a_predictor_takes() -> None:
    (settings,) = (one for one in manifests("llm-d-router.yaml") if one["kind"] == "ConfigMap")
    document = parse_document(settings["data"]["settings.yaml"].encode())
    assert document.stable.spec.scheduler.reorder == "Never"


def test_router_and_predictor_hash_alike() -> None:
    (service,) = all_of("LLMInferenceService")
    (main,) = service["spec"]["template"]["containers"]
    plugins = {one["type"]: one for one in service["spec"]["router"]["scheduler"]["config"]["inline"]["plugins"]}
    hashing = plugins["precise-prefix-cache-producer"]["parameters"]["tokenProcessorConfig"]
    assert f"--block-size={hashing['blockSize']}" in main["args"]
    assert {"name": "PYTHONHASHSEED", "value": hashing["hashSeed"]} in main["env"]


def test_manifests_in_the_documentation_pass_their_schemas(
    code_blocks: Any, validate: Callable[[Manifest], list[str]]
) -> None:
    found = [(str(block), yaml.safe_load(block.text)) for block in code_blocks if block.language == "yaml"]
    manifests = [(place, _whole(one)) for place, one in found if {"apiVersion", "predictor"} & one.keys()]
    assert [(place, said) for place, one in manifests if (said := validate(one))] == []
    assert {one["kind"] for _, one in manifests} >= {"InferenceService", "PrismConfig"}


def _whole(shown: Manifest) -> Manifest:
    """A page may show an InferenceService's `predictor` alone."""
    if "apiVersion" in shown:
        return shown
    head = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "shown"}}
    return {**head, "spec": shown}
