"""Real predictors on the cluster: InferenceServices with models and libraries from the node."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from realcluster.cluster import Cluster
from realcluster.images import REPOSITORY
from realcluster.kserve_standin import predictor_name
from realcluster.namespaces import wait_for

LIBRARIES = "/opt/libraries"
EXAMPLE = REPOSITORY / "docs" / "examples" / "smollm2-cpu.yaml"


def _volume(name: str, namespace: str, path: Path) -> list[dict[str, Any]]:
    """A volume of the node's that a namespace claims, since restricted pods may mount claims and no paths."""
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            **common,
            "capacity": {"storage": "20Gi"},
            "hostPath": {"path": str(path), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": name},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**common, "volumeName": f"{namespace}-{name}", "resources": {"requests": {"storage": "20Gi"}}},
    }
    return [volume, claim]


def volumes(namespace: str, models: Path) -> list[dict[str, Any]]:
    """The claims `models` and `libraries` of a namespace; the libraries are those of the project's environment."""
    return [
        *_volume("models", namespace, models),
        *_volume("libraries", namespace, Path(sysconfig.get_paths()["purelib"])),
    ]


def inference_service(
    name: str, namespace: str, model: str, *, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The example for a CPU in the documentation, under another name and with storage of this cluster."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    document["metadata"] |= {"name": name, "namespace": namespace, "labels": dict(labels or {})}
    document["spec"]["predictor"]["model"]["storageUri"] = f"pvc://models/{model}"
    return document


def with_libraries(service: dict[str, Any]) -> dict[str, Any]:
    """The same with the libraries mounted that the small test image leaves out."""
    predictor = service["spec"]["predictor"]
    claimed = {"claimName": "libraries", "readOnly": True}
    predictor["volumes"] = [{"name": "libraries", "persistentVolumeClaim": claimed}]
    predictor["model"]["volumeMounts"] = [{"name": "libraries", "mountPath": LIBRARIES, "readOnly": True}]
    predictor["model"]["env"] = [{"name": "PYTHONPATH", "value": LIBRARIES}]
    return service


@dataclass
class Predictor:
    """A running InferenceService."""

    cluster: Cluster
    name: str
    namespace: str
    wait_s: float = 420
    _address: str = field(default="", init=False)

    def wait_ready(self) -> None:
        """Returns once the InferenceService says that it is ready."""
        wait_for(f"InferenceService {self.name} is ready", self._ready, seconds=self.wait_s, every=1)

    @property
    def url(self) -> str:
        """Address of its Service, which this machine reaches too."""
        if not self._address:
            found = self.cluster.get("service", predictor_name(self.name), "-n", self.namespace)
            self._address = f"http://{found['spec']['clusterIP']}"
        return self._address

    def pods(self) -> list[dict[str, Any]]:
        """Its pods that are not being deleted."""
        label = f"serving.kserve.io/inferenceservice={self.name}"
        pods = self.cluster.get("pods", "-n", self.namespace, "-l", label)["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def ready_pods(self) -> list[dict[str, Any]]:
        """Those of its pods that take requests."""
        return [pod for pod in self.pods() if _condition(pod, "Ready")]

    def settings(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """What a pod says on its admin port about the settings it obeys."""
        with httpx.Client(trust_env=False, timeout=10) as client:
            answer = client.get(f"http://{pod['status']['podIP']}:8090/prism/v1/settings")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def execute(self, pod: Mapping[str, Any], *command: str) -> str:
        """Runs a command in a pod's container."""
        where = ["exec", "-n", self.namespace, pod["metadata"]["name"], "-c", "kserve-container", "--"]
        return self.cluster.kubectl(*where, *command)

    def _ready(self) -> bool:
        found = self.cluster.get("inferenceservice", self.name, "-n", self.namespace)
        seen = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        return seen and _condition(found, "Ready")


def _condition(document: Mapping[str, Any], kind: str) -> bool:
    conditions = document.get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)
