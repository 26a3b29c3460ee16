"""Names that PRISM and KServe give to what the operator reads and writes."""

from __future__ import annotations

from typing import Final

GROUP: Final = "serving.prism.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "PrismConfig"

FIELD_MANAGER: Final = "prism-operator"
"""Owner of the fields that the operator writes, in server-side apply."""

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_RUNTIME: Final = f"{GROUP}/runtime"
"""`"true"` on a (Cluster)ServingRuntime that runs PRISM, or on an InferenceService that brings its own container."""

LABEL_SERVICE: Final = "serving.kserve.io/inferenceservice"
LABEL_POD_COMPONENT: Final = "component"
PREDICTOR: Final = "predictor"
"""KServe labels the pods of a service with its name, and those of its predictor as such."""

LABEL_APP: Final = "app"
WORKER_SUFFIX: Final = "-worker"
"""KServe's label for the pods of one deployment; it ends so for the workers of an engine that spans several nodes."""

NUDGE_ANNOTATION: Final = f"{GROUP}/settings"
"""Changed on a pod, it lets the kubelet refresh the pod's volumes at once."""

SETTINGS_SHARDS: Final = 8
DEFAULT_CONFIG: Final = "default"
"""The PrismConfig of this name in the release's namespace is for every service that no other selects."""

ADMIN_POLICY: Final = "prism-admin"


def shard_name(shard: int) -> str:
    """`prism-settings-0` to `prism-settings-7`, the ConfigMaps that runtimes mount."""
    return f"prism-settings-{shard}"


SETTINGS_NAMES: Final = tuple(shard_name(shard) for shard in range(SETTINGS_SHARDS))


def document_key(service: str) -> str:
    """The key of a service's document in its ConfigMap, and the file's name where it is mounted."""
    return f"{service}.yaml"


def predictor_app(service: str) -> str:
    """The `app` label of a service's predictor pods in KServe's Standard mode."""
    return f"isvc.{service}-predictor"


def budget_name(service: str) -> str:
    """The PodDisruptionBudget of a service's predictor."""
    return f"prism-{service}"
