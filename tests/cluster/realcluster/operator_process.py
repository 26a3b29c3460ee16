"""The operator as a process of its own beside an API server without nodes, and pods that are stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from realcluster.admin_standin import AdminPort
from realcluster.controlplane import ApiServer, free_port
from realcluster.namespaces import wait_for

ADMIN_PORT = 18090
RELEASE = "prism-system"
TRIAL = {"canary": 1, "watchSeconds": 12, "minSamples": 20}
"""A trial that does not last."""


class OperatorProcess:
    """`python -m prism_operator` with the administrator's rights."""

    def __init__(self, api_server: ApiServer, folder: Path, *flags: str, kubeconfig: Path | None = None) -> None:
        self.identity = f"operator-{uuid.uuid4().hex[:6]}"
        self.probes, self.metrics = free_port(), free_port()
        self._log = (folder / f"{self.identity}.log").open("w")
        command = [
            sys.executable,
            "-m",
            "prism_operator",
            f"--kubeconfig={kubeconfig or api_server.kubeconfig}",
            f"--namespace={RELEASE}",
            f"--identity={self.identity}",
            "--host=127.0.0.1",
            f"--probes-port={self.probes}",
            f"--metrics-port={self.metrics}",
            f"--admin-port={ADMIN_PORT}",
            "--log-format=text",
            *flags,
        ]
        self.process = subprocess.Popen(command, stderr=self._log, stdout=self._log)

    def kill(self) -> None:
        """Ends it without a chance to tidy up."""
        self.process.kill()
        self.process.wait(timeout=10)
        self._log.close()

    def stop(self) -> int:
        """Asks it to end; returns the exit status."""
        self.process.terminate()
        status = self.process.wait(timeout=30)
        self._log.close()
        return status

    def wait_ready(self, seconds: float = 60) -> None:
        """Returns once it knows the cluster."""
        wait_for("the operator is ready", lambda: self.probe("readyz")[0] == 200, seconds=seconds)

    def probe(self, name: str) -> tuple[int, str]:
        """Status and sentence of a probe; 0 while it does not answer."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.probes}/{name}", trust_env=False, timeout=5)
        except httpx.HTTPError as error:
            return 0, str(error)
        return answer.status_code, answer.text

    def metric(self, line: str) -> float:
        """The value of the metric whose line begins so; 0 without one."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics", trust_env=False, timeout=5).text
        return sum(float(one.rsplit(" ", 1)[1]) for one in text.splitlines() if one.startswith(line))


class StandInPod:
    """A pod object, and the stand-in that answers for it; follows the ConfigMap unless told to stand still."""

    def __init__(
        self, api_server: ApiServer, namespace: str, service: str, name: str, address: str, folder: Path
    ) -> None:
        self.name, self.address = name, address
        self.still = False
        self._api, self._namespace, self._service = api_server, namespace, service
        self.admin = AdminPort(address, ADMIN_PORT, folder / f"{name}.yaml", name)
        self._stopping = threading.Event()
        api_server.apply(_pod(namespace, service, name))
        self.say(ready=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def say(self, *, ready: bool, restarts: int = 0) -> None:
        """Writes the pod's status as a kubelet would."""
        container = {"name": "kserve-container", "ready": ready, "restartCount": restarts, "image": "x", "imageID": "x"}
        status = {
            "phase": "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [container],
        }
        where = ["pod", self.name, "-n", self._namespace, "--subresource=status", "--type=merge"]
        self._api.kubectl("patch", *where, "-p", json.dumps({"status": status}))

    def nudge(self) -> str:
        """The annotation by which the kubelet is told to look at the settings; empty without it."""
        found = self._api.get("pod", self.name, "-n", self._namespace)["metadata"]
        return str(found.get("annotations", {}).get("serving.prism.dev/settings", ""))

    def delete(self) -> None:
        """Deletes the pod and closes its port."""
        self.close()
        self._api.kubectl("delete", "pod", self.name, "-n", self._namespace, "--grace-period=0", "--force")

    def close(self) -> None:
        """Closes its port; the object stays."""
        self._stopping.set()
        self._thread.join(timeout=10)
        self.admin.close()

    def _follow(self) -> None:
        key = f"{self._service}.yaml"
        with self._api.http() as client:
            while not self._stopping.wait(0.3):
                if self.still:
                    continue
                try:
                    answer = client.get(f"/api/v1/namespaces/{self._namespace}/configmaps").json()
                except (httpx.HTTPError, ValueError):
                    continue
                texts = [one["data"][key] for one in answer.get("items", ()) if key in (one.get("data") or {})]
                if texts:
                    self._bring(texts[0])

    def _bring(self, text: str) -> None:
        """Swaps the file whole, as the kubelet does."""
        new = self.admin.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.admin.file)


def _pod(namespace: str, service: str, name: str) -> dict[str, Any]:
    labels = {"serving.kserve.io/inferenceservice": service, "component": "predictor"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "nodeName": "none",
            "automountServiceAccountToken": False,
            "containers": [{"name": "x", "image": "x"}],
        },
    }


class Team:
    """A namespace of an API server without nodes, with the runtime and services and pods of one's own."""

    def __init__(self, api_server: ApiServer, folder: Path) -> None:
        self.api_server, self.folder = api_server, folder
        self.namespace = f"team-{uuid.uuid4().hex[:6]}"
        self.pods: list[StandInPod] = []
        api_server.kubectl("create", "namespace", self.namespace)
        api_server.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": self.namespace},
            },
            _runtime(),
        )

    def serve(self, service: str, *, labels: dict[str, str] | None = None) -> None:
        """An InferenceService of two replicas at most that names the runtime."""
        self.api_server.apply(inference_service(self.namespace, service, labels or {"serving.prism.dev/config": "rag"}))

    def start_pods(self, service: str, count: int) -> list[StandInPod]:
        """Pods of the service, each with a loopback address of its own."""
        started = []
        for number in range(count):
            address = f"127.{100 + uuid.uuid4().int % 100}.{uuid.uuid4().int % 250}.{len(self.pods) + 1}"
            name = f"{service}-{number}"
            started.append(StandInPod(self.api_server, self.namespace, service, name, address, self.folder))
            self.pods.append(started[-1])
        return started

    def configure(self, name: str = "rag", **spec: Any) -> None:
        """Applies a PrismConfig for the services labelled with its name."""
        selector = {"matchLabels": {"serving.prism.dev/config": name}}
        self.api_server.apply(
            {
                "apiVersion": "serving.prism.dev/v1alpha1",
                "kind": "PrismConfig",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"selector": selector, **spec},
            }
        )

    def status(self, name: str = "rag") -> dict[str, Any]:
        """The status of a PrismConfig."""
        found: dict[str, Any] = self.api_server.get("prismconfig", name, "-n", self.namespace).get("status", {})
        return found

    def condition(self, kind: str = "Ready", name: str = "rag") -> tuple[str, str]:
        """Status and reason of a condition; empty before there is one."""
        found = [one for one in self.status(name).get("conditions", ()) if one["type"] == kind]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")

    def message(self, kind: str = "Ready", name: str = "rag") -> str:
        """The message of a condition."""
        return next((str(one["message"]) for one in self.status(name).get("conditions", ()) if one["type"] == kind), "")

    def wait(self, what: str, happened: Callable[[], object], seconds: float = 60) -> float:
        """Seconds until it happened."""
        began = time.monotonic()
        wait_for(what, happened, seconds=seconds)
        return time.monotonic() - began

    def documents(self) -> dict[str, dict[str, Any]]:
        """The settings documents, by service."""
        found = self.api_server.get("configmaps", "-n", self.namespace)["items"]
        texts = {key: text for one in found for key, text in (one.get("data") or {}).items()}
        return {key.removesuffix(".yaml"): yaml.safe_load(text) for key, text in texts.items() if key.endswith(".yaml")}

    def source(self, service: str) -> str:
        """Who wrote the settings that a service's document has for all pods; empty without a document."""
        return str(self.documents().get(service, {}).get("stable", {}).get("source", ""))

    def close(self) -> None:
        """Closes the pods' ports and takes the objects away, which nobody collects without controllers."""
        for pod in self.pods:
            pod.close()
        everything = "prismconfigs,inferenceservices,pods,configmaps,networkpolicies,poddisruptionbudgets"
        self.api_server.kubectl("delete", everything, "--all", "-n", self.namespace, "--force", "--grace-period=0")


class Traffic:
    """Requests to every pod for as long as the block lasts; `slow` names those that answer late."""

    def __init__(self, pods: list[StandInPod]) -> None:
        self.pods = pods
        self.slow: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.wait(0.2):
            for pod in self.pods:
                role = pod.admin.settings.in_force.role
                pod.admin.serve(5, 1.0 if role in self.slow else 0.1)


def begin_trial(team: Team) -> list[StandInPod]:
    """A service of three pods, and first settings that are tried on one of them."""
    team.serve("s")
    pods = team.start_pods("s", 3)
    team.configure(scheduler={"coldLane": {"quota": 0.2}}, rollout=TRIAL)
    team.wait("the first settings are tried or in force", lambda: team.status().get("rollout"))
    return pods


def wait_over(team: Team, generation: int) -> dict[str, Any]:
    """The trial of a generation once it has ended."""

    def over() -> bool:
        trial = team.status().get("rollout", {})
        return trial.get("generation") == generation and trial.get("phase") in ("Promoted", "Withdrawn")

    team.wait("the trial is over", over, seconds=120)
    found: dict[str, Any] = team.status()["rollout"]
    return found


def inference_service(namespace: str, name: str, labels: dict[str, str]) -> dict[str, Any]:
    """An InferenceService as an API server without KServe's webhook takes it."""
    model = {"modelFormat": {"name": "huggingface"}, "runtime": "prism-cpu", "storageUri": "pvc://models/any"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"predictor": {"minReplicas": 1, "maxReplicas": 2, "model": model}},
    }


def _runtime() -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ClusterServingRuntime",
        "metadata": {"name": "prism-cpu", "labels": {"serving.prism.dev/runtime": "true"}},
        "spec": {"containers": [{"name": "kserve-container", "image": "x"}]},
    }


@contextmanager
def operator(
    api_server: ApiServer, folder: Path, *flags: str, kubeconfig: Path | None = None, ready: bool = True
) -> Iterator[OperatorProcess]:
    """A running operator, ended afterwards; with `ready` it knows the cluster when the block begins."""
    process = OperatorProcess(api_server, folder, *flags, kubeconfig=kubeconfig)
    try:
        if ready:
            process.wait_ready()
        yield process
    finally:
        if process.process.poll() is None:
            process.stop()
