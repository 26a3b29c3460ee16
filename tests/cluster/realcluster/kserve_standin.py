"""A small stand-in for KServe's controller, for a cluster where the real one cannot be had.

It does what KServe 0.21 does in its Standard mode with an InferenceService that has a `predictor.model`: finds the
ServingRuntime, merges the model's fields into the runtime's container, fills in `{{.Name}}`, mounts the storage at
/mnt/models, and keeps a Deployment and a Service of KServe's names and labels. It adds nothing of its own, so that
manifests which work here work with KServe. What it does not do: side-cars, transformers, explainers, autoscaling,
ingress, downloads (`hf://`, `s3://`), multi-node.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from realcluster.controlplane import ApiServer

_logger = logging.getLogger(__name__)

CONTAINER = "kserve-container"
MODELS = "/mnt/models"
_GROUP = "serving.kserve.io"
_POD_FIELDS = (
    "affinity",
    "automountServiceAccountToken",
    "imagePullSecrets",
    "nodeSelector",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
)
_MODEL_ONLY = ("modelFormat", "protocolVersion", "runtime", "runtimeVersion", "storage", "storageUri")

Document = dict[str, Any]


class NotServable(Exception):
    """KServe would refuse or could not reconcile this InferenceService."""


def predictor_name(service: str) -> str:
    """Name of the Deployment and the Service of an InferenceService's predictor."""
    return f"{service}-predictor"


def _by_name(merged: list[Document], added: list[Document]) -> list[Document]:
    """A strategic merge of two lists whose entries are known by name."""
    entries = {entry["name"]: entry for entry in merged}
    for entry in added:
        entries[entry["name"]] = {**entries.get(entry["name"], {}), **entry}
    return list(entries.values())


def _filled(value: Any, name: str) -> Any:
    return json.loads(json.dumps(value).replace("{{.Name}}", name))


def container(service: Document, runtime: Document) -> Document:
    """The runtime's container with the model's fields merged in: arguments behind its own, the rest in their place."""
    found = [one for one in runtime["spec"]["containers"] if one["name"] == CONTAINER]
    if not found:
        raise NotServable(f"runtime {runtime['metadata']['name']} has no container named {CONTAINER}")
    merged: Document = _filled(found[0], service["metadata"]["name"])
    model = {key: value for key, value in service["spec"]["predictor"]["model"].items() if key not in _MODEL_ONLY}
    model.pop("name", None)
    for key, value in model.items():
        if key == "args":
            merged["args"] = [*merged.get("args", []), *value]
        elif key in ("env", "volumeMounts") and key in merged:
            merged[key] = _by_name(merged[key], value)
        elif key == "resources":
            merged[key] = {
                kind: {**merged.get(key, {}).get(kind, {}), **value.get(kind, {})} for kind in ("limits", "requests")
            }
        elif value not in ({}, ""):
            merged[key] = value
    if not any(key in merged for key in ("readinessProbe",)):
        port = merged.get("ports", [{"containerPort": 8080}])[0]["containerPort"]
        merged["readinessProbe"] = {"tcpSocket": {"port": port}}
    return merged


def _mount_storage(pod: Document, uri: str) -> None:
    if not uri.startswith("pvc://"):
        raise NotServable(f"this stand-in mounts pvc:// storage only, and got {uri}")
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    mount: Document = {"name": "kserve-pvc-source", "mountPath": MODELS, "readOnly": True}
    if path:
        mount["subPath"] = path
    claimed = {"claimName": claim, "readOnly": False}
    pod.setdefault("volumes", []).append({"name": "kserve-pvc-source", "persistentVolumeClaim": claimed})
    pod["containers"][0].setdefault("volumeMounts", []).append(mount)


def pod_spec(service: Document, runtime: Document) -> Document:
    """The pod: fields of the runtime, with the predictor's own before them."""
    predictor = service["spec"]["predictor"]
    pod: Document = {"containers": [container(service, runtime)]}
    for source in (runtime["spec"], predictor):
        pod |= {key: copy.deepcopy(source[key]) for key in _POD_FIELDS if key in source}
        if source.get("volumes"):
            pod["volumes"] = _by_name(pod.get("volumes", []), copy.deepcopy(source["volumes"]))
    if uri := predictor["model"].get("storageUri"):
        _mount_storage(pod, uri)
    return pod


def _metadata(service: Document, name: str, labels: Mapping[str, str]) -> Document:
    owner = {
        "apiVersion": service["apiVersion"],
        "kind": service["kind"],
        "name": service["metadata"]["name"],
        "uid": service["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": service["metadata"]["namespace"],
        "labels": dict(labels),
        "ownerReferences": [owner],
    }


def labels_of(service: Document, runtime: Document) -> dict[str, str]:
    """Labels of the pods: the service's and the runtime's, and those by which KServe finds them."""
    name = service["metadata"]["name"]
    return {
        **service["metadata"].get("labels", {}),
        **runtime["spec"].get("labels", {}),
        **service["spec"]["predictor"].get("labels", {}),
        "app": f"isvc.{predictor_name(name)}",
        "serving.kserve.io/inferenceservice": name,
        "component": "predictor",
    }


def deployment(service: Document, runtime: Document) -> Document:
    """The Deployment of a predictor."""
    name, labels = predictor_name(service["metadata"]["name"]), labels_of(service, runtime)
    annotations = {
        **service["metadata"].get("annotations", {}),
        **runtime["spec"].get("annotations", {}),
        **service["spec"]["predictor"].get("annotations", {}),
    }
    annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    strategy = service["spec"]["predictor"].get("deploymentStrategy") or {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(service, name, labels),
        "spec": {
            "replicas": max(1, service["spec"]["predictor"].get("minReplicas", 1)),
            "selector": {"matchLabels": {"app": labels["app"]}},
            "strategy": strategy,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": pod_spec(service, runtime),
            },
        },
    }


def service(inference_service: Document, runtime: Document) -> Document:
    """The Service of a predictor: the container's first port as port 80, the others as they are."""
    name, labels = predictor_name(inference_service["metadata"]["name"]), labels_of(inference_service, runtime)
    declared = container(inference_service, runtime).get("ports") or [{"containerPort": 8080}]
    ports = [{"name": "http", "port": 80, "targetPort": declared[0]["containerPort"], "protocol": "TCP"}]
    ports += [
        {"name": port["name"], "port": port["containerPort"], "targetPort": port["containerPort"], "protocol": "TCP"}
        for port in declared[1:]
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(inference_service, name, labels),
        "spec": {"selector": {"app": labels["app"]}, "ports": ports},
    }


def status(inference_service: Document, found: Document, runtime: Document) -> Document:
    """What the InferenceService's status says about its Deployment."""
    metadata, state = inference_service["metadata"], found.get("status", {})
    available = any(
        condition["type"] == "Available" and condition["status"] == "True" for condition in state.get("conditions", [])
    )
    url = f"http://{predictor_name(metadata['name'])}.{metadata['namespace']}.svc.cluster.local"
    truth = "True" if available else "False"
    kind = "clusterServingRuntimeName" if runtime["kind"] == "ClusterServingRuntime" else "servingRuntimeName"
    return {
        "observedGeneration": metadata["generation"],
        "url": url,
        "address": {"url": url},
        kind: runtime["metadata"]["name"],
        "conditions": [{"type": name, "status": truth} for name in ("IngressReady", "PredictorReady", "Ready")],
        "components": {"predictor": {"url": url}},
    }


class KServeStandIn:
    """Keeps Deployments and Services for the InferenceServices of some namespaces, from a thread of its own."""

    def __init__(self, api_server: ApiServer, namespaces: Sequence[str]) -> None:
        self._client = api_server.http()
        self._namespaces = namespaces
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kserve-stand-in", daemon=True)

    def start(self) -> None:
        """Begins to look after InferenceServices."""
        self._thread.start()

    def close(self) -> None:
        """Stops looking."""
        self._stop.set()
        self._thread.join(10)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            try:
                self._pass()
            except httpx.HTTPError as error:
                _logger.info("the API server does not answer: %s", error)

    def _pass(self) -> None:
        for item in self._inference_services():
            if "deletionTimestamp" in item["metadata"] or "model" not in item["spec"]["predictor"]:
                continue
            item |= {"apiVersion": f"{_GROUP}/v1beta1", "kind": "InferenceService"}
            try:
                self._reconcile(item)
            except NotServable as why:
                _logger.warning("%s: %s", item["metadata"]["name"], why)

    def _inference_services(self) -> Iterator[Document]:
        for namespace in self._namespaces:
            answer = self._client.get(f"/apis/{_GROUP}/v1beta1/namespaces/{namespace}/inferenceservices")
            if answer.status_code == 200:
                yield from answer.json()["items"]

    def _reconcile(self, item: Document) -> None:
        namespace, name = item["metadata"]["namespace"], predictor_name(item["metadata"]["name"])
        runtime = self._runtime(item["spec"]["predictor"]["model"].get("runtime"), namespace)
        self._apply(f"/api/v1/namespaces/{namespace}/services/{name}", service(item, runtime))
        found = self._apply(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}", deployment(item, runtime))
        wanted = status(item, found, runtime)
        if {key: item.get("status", {}).get(key) for key in wanted} != wanted:
            where = f"/apis/{_GROUP}/v1beta1/namespaces/{namespace}/inferenceservices/{item['metadata']['name']}/status"
            self._client.patch(where, json={"status": wanted}, headers={"Content-Type": "application/merge-patch+json"})

    def _runtime(self, name: str | None, namespace: str) -> Document:
        if not name:
            raise NotServable("the model names no runtime; this stand-in does not choose one")
        for path, kind in (
            (f"namespaces/{namespace}/servingruntimes/{name}", "ServingRuntime"),
            (f"clusterservingruntimes/{name}", "ClusterServingRuntime"),
        ):
            answer = self._client.get(f"/apis/{_GROUP}/v1alpha1/{path}")
            if answer.status_code == 200:
                found: Document = answer.json()
                return found | {"kind": kind}
        raise NotServable(f"there is no runtime {name}")

    def _apply(self, path: str, document: Document) -> Document:
        answer = self._client.patch(
            path,
            params={"fieldManager": "kserve-stand-in", "force": "true"},
            content=json.dumps(document),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        if answer.status_code >= 400:
            raise NotServable(answer.json().get("message", answer.text))
        applied: Document = answer.json()
        return applied
