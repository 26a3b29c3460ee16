"""The few fields of the cluster's objects that the operator needs, as frozen values.

What the API server sends is read once, when it arrives, and dropped: thousands of services and pods stay small. A field
that is absent or of another type than it should be reads as absent; what a PrismConfig says is judged in `select`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prism_operator.names import (
    LABEL_APP,
    LABEL_POD_COMPONENT,
    LABEL_RUNTIME,
    LABEL_SERVICE,
    NUDGE_ANNOTATION,
    PREDICTOR,
    WORKER_SUFFIX,
)

Json = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name; the namespace of what has none is empty."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What every object has. `created` is in RFC 3339, which sorts as time does."""

    namespace: str
    name: str
    uid: str
    created: str = ""
    generation: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Config:
    """A PrismConfig. `spec` and `status` are as they came; one that is `going` is only kept by others' finalizers."""

    meta: Meta
    spec: Json
    status: Json
    going: bool = False

    @property
    def source(self) -> str:
        """Who the settings are from, as documents say it."""
        return f"{self.meta.namespace}/{self.meta.name}"


@dataclass(frozen=True, slots=True)
class Service:
    """An InferenceService.

    Attributes:
        runtime: the runtime it names, or that KServe chose for it; empty without one.
        runtime_scope: `namespace` or `cluster` where KServe said so, else empty: a namespace's runtime wins.
        most_replicas: how many replicas it may have.
    """

    meta: Meta
    runtime: str
    runtime_scope: str
    most_replicas: int


@dataclass(frozen=True, slots=True)
class Runtime:
    """A ServingRuntime, or a ClusterServingRuntime, whose namespace is empty."""

    meta: Meta

    @property
    def runs_prism(self) -> bool:
        return self.meta.labels.get(LABEL_RUNTIME) == "true"


@dataclass(frozen=True, slots=True)
class Pod:
    """A predictor pod.

    Attributes:
        service: the InferenceService it belongs to.
        address: its IP, empty before it has one.
        life: changes whenever its container begins anew.
        nudge: the annotation that let the kubelet refresh its volumes last.
    """

    meta: Meta
    service: str
    address: str
    ready: bool
    going: bool
    life: str
    nudge: str

    @property
    def process(self) -> str:
        """Tells its process from those before it under the same name."""
        return f"{self.meta.uid}/{self.life}"


@dataclass(frozen=True, slots=True)
class Owned:
    """An object that the operator writes. `content` is its data or spec."""

    meta: Meta
    content: Json
    immutable: bool = False


def read_config(data: Json) -> Config:
    """A PrismConfig from the API server's JSON."""
    going = "deletionTimestamp" in _mapping(data, "metadata")
    return Config(_meta(data), _mapping(data, "spec"), _mapping(data, "status"), going)


def read_service(data: Json) -> Service:
    """An InferenceService from the API server's JSON."""
    predictor = _mapping(data, "spec", "predictor")
    status = _mapping(data, "status")
    named = _text(_mapping(predictor, "model").get("runtime"))
    of_namespace, of_cluster = _text(status.get("servingRuntimeName")), _text(status.get("clusterServingRuntimeName"))
    runtime = named or of_namespace or of_cluster
    scope = {of_namespace: "namespace", of_cluster: "cluster"}.get(runtime, "") if runtime else ""
    replicas = max(_count(predictor.get("minReplicas"), 1), _count(predictor.get("maxReplicas"), 0))
    return Service(_meta(data), runtime, scope, replicas)


def read_runtime(data: Json) -> Runtime:
    """A ServingRuntime or ClusterServingRuntime from the API server's JSON."""
    return Runtime(_meta(data))


def read_pod(data: Json) -> Pod:
    """A pod from the API server's JSON."""
    status, metadata = _mapping(data, "status"), _mapping(data, "metadata")
    containers = [one for one in status.get("containerStatuses") or () if isinstance(one, dict)]
    conditions = [one for one in status.get("conditions") or () if isinstance(one, dict)]
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    going = "deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed")
    life = "/".join(f"{one.get('name')}:{one.get('restartCount', 0)}" for one in containers)
    meta = _meta(data)
    nudge = _text(_mapping(metadata, "annotations").get(NUDGE_ANNOTATION))
    address = _text(status.get("podIP"))
    return Pod(meta, meta.labels.get(LABEL_SERVICE, ""), address, ready, going, life, nudge)


def is_predictor(pod: Pod) -> bool:
    """Whether the pod serves requests: not a transformer, an explainer, or a worker of an engine on several nodes."""
    labels = pod.meta.labels
    return labels.get(LABEL_POD_COMPONENT, PREDICTOR) == PREDICTOR and not labels.get(LABEL_APP, "").endswith(
        PREDICTOR + WORKER_SUFFIX
    )


def read_owned(data: Json) -> Owned:
    """A ConfigMap, NetworkPolicy or PodDisruptionBudget from the API server's JSON."""
    content = _mapping(data, "spec") if "spec" in data else _mapping(data, "data")
    return Owned(_meta(data), content, data.get("immutable") is True)


def _meta(data: Json) -> Meta:
    metadata = _mapping(data, "metadata")
    labels = {str(key): str(value) for key, value in _mapping(metadata, "labels").items()}
    return Meta(
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        created=_text(metadata.get("creationTimestamp")),
        generation=_count(metadata.get("generation"), 0),
        labels=labels,
    )


def _mapping(data: Json, *path: str) -> Json:
    found: Any = data
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
