"""PRISM on the cluster as a user puts it there: with Helm, from the chart of this checkout."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realcluster.cluster import Cluster
from realcluster.helm import Helm
from realcluster.images import OPERATOR_IMAGE, PREDICTOR_IMAGE, REPOSITORY

CHART = REPOSITORY / "charts" / "prism"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_SMALL = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
_PREDICTOR = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "6Gi"}}
TEST_VALUES: dict[str, Any] = {
    "operator": {"image": {"repository": OPERATOR_IMAGE, "tag": "test", "pullPolicy": "Never"}, "resources": _SMALL},
    "runtimes": {
        "cpu": {
            "image": {"repository": PREDICTOR_IMAGE, "tag": "test", "pullPolicy": "Never"},
            "resources": _PREDICTOR,
        },
    },
}
"""What differs on a small machine without an image registry: where images come from, and how much a pod asks for."""


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values with others laid over them, as Helm does with two files."""
    result = dict(copy.deepcopy(dict(values)))
    for key, value in over.items():
        both_are_maps = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both_are_maps else value
    return result


@dataclass
class Installation:
    """A release of the chart."""

    cluster: Cluster
    helm: Helm
    namespace: str = "prism-system"
    release: str = "prism"
    chart: Path = CHART

    def install(self, values: Mapping[str, Any] | None = None, *, wait: bool = True) -> str:
        """`helm install` into a namespace in which only restricted pods may run."""
        self.make_namespace(self.namespace)
        return self._helm("install", values, *(["--wait"] if wait else []))

    def upgrade(self, values: Mapping[str, Any] | None = None, *, chart: Path | None = None) -> str:
        """`helm upgrade`, from another chart if one is given."""
        return self._helm("upgrade", values, "--wait", chart=chart)

    def rollback(self) -> str:
        """`helm rollback` to the revision before."""
        return self.helm.run("rollback", self.release, "-n", self.namespace, "--wait", "--timeout", "180s")

    def uninstall(self) -> str:
        """`helm uninstall`, which waits for nothing that the chart does not make it wait for."""
        return self.helm.run("uninstall", self.release, "-n", self.namespace, "--wait", "--timeout", "120s")

    def make_namespace(self, name: str, labels: Mapping[str, str] = RESTRICTED) -> None:
        """Makes a namespace, or labels the one that exists."""
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}
        )

    def operator_pods(self) -> list[dict[str, Any]]:
        """The operator's pods that are not being deleted."""
        label = f"app.kubernetes.io/component=operator,app.kubernetes.io/instance={self.release}"
        pods = self.cluster.get("pods", "-n", self.namespace, "-l", label)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _helm(self, verb: str, values: Mapping[str, Any] | None, *options: str, chart: Path | None = None) -> str:
        where = [self.release, str(chart or self.chart), "-n", self.namespace, "--timeout", "180s"]
        return self.helm.run(verb, *where, *options, values=merged(TEST_VALUES, values or {}))
