"""PrismConfigs as users write them, and what the operator makes of them."""

from __future__ import annotations

from typing import Any

import yaml

from realcluster.cluster import Cluster


def prism_config(
    namespace: str, *, name: str = "rag", select: str | None = None, quota: float | None = None, **spec: Any
) -> dict[str, Any]:
    """A PrismConfig for the InferenceServices labelled with its name, or with `select`."""
    if quota is not None:
        spec = {**spec, "scheduler": {**spec.get("scheduler", {}), "coldLane": {"quota": quota}}}
    return {
        "apiVersion": "serving.prism.dev/v1alpha1",
        "kind": "PrismConfig",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"serving.prism.dev/config": select or name}}, **spec},
    }


def configmaps(cluster: Cluster, namespace: str) -> dict[str, dict[str, str]]:
    """The data of the settings ConfigMaps of a namespace, by name."""
    found = cluster.get("configmaps", "-n", namespace)["items"]
    prefix = "prism-settings-"
    return {one["metadata"]["name"]: one.get("data", {}) for one in found if one["metadata"]["name"].startswith(prefix)}


def documents_of(cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    """The settings documents of a namespace, by InferenceService."""
    maps = configmaps(cluster, namespace).values()
    return {key.removesuffix(".yaml"): yaml.safe_load(text) for data in maps for key, text in data.items()}
