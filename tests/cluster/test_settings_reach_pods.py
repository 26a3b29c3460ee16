"""From a PrismConfig to the file in a pod, by the kubelet, with the volume that the chart's runtime mounts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from realcluster.cluster import Cluster
from realcluster.images import OPERATOR_IMAGE
from realcluster.installation import Installation
from realcluster.namespaces import wait_for
from realcluster.predictors import inference_service
from realcluster.settings import prism_config

FILE = "/etc/prism/settings/answers.yaml"


def _reader(prism: Installation, namespace: str) -> dict[str, Any]:
    """A pod with the settings volume and the security of the runtime's container, which only sleeps."""
    runtime = prism.cluster.get("clusterservingruntime", "prism-cpu")["spec"]
    (served,) = runtime["containers"]
    container = {
        "name": "reader",
        "image": f"{OPERATOR_IMAGE}:test",
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", "import signal; signal.pause()"],
        "securityContext": served["securityContext"],
        "volumeMounts": [one for one in served["volumeMounts"] if one["mountPath"] == "/etc/prism/settings"],
    }
    volumes = [one for one in runtime["volumes"] if "projected" in one]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reader", "namespace": namespace}, "spec": spec}


@pytest.fixture
def reader(prism: Installation, namespace: str) -> str:
    """The namespace of a running pod that mounts the settings of the InferenceService `answers`."""
    labels = {"serving.prism.dev/config": "rag"}
    prism.cluster.apply(inference_service("answers", namespace, "any", labels=labels))
    prism.cluster.apply(_reader(prism, namespace))
    prism.cluster.kubectl("wait", "--for=condition=Ready", "pod/reader", "-n", namespace, "--timeout=60s")
    return namespace


@pytest.fixture
def default_kubelet(cluster: Cluster) -> Iterator[None]:
    """A kubelet that looks at its pods' volumes as often as Kubernetes does by default."""
    short = cluster.node.sync_period
    cluster.node.set_sync_period("1m")
    yield
    cluster.node.set_sync_period(short)


def _seconds_to_reach(cluster: Cluster, namespace: str, quota: float, *, within: float) -> float:
    cluster.apply(prism_config(namespace, quota=quota))
    began = time.monotonic()
    read = ("exec", "reader", "-n", namespace, "--", "cat", FILE)
    has_it = lambda: f"quota: {quota}" in cluster.kubectl(*read, check=False)  # noqa: E731
    wait_for("the mounted file follows", has_it, seconds=within, every=0.5)
    return time.monotonic() - began


def test_a_config_reaches_a_pod_that_ran_before_it(prism: Installation, reader: str) -> None:
    assert _seconds_to_reach(prism.cluster, reader, 0.25, within=30) < 30


def test_an_edit_reaches_a_pod_within_ninety_seconds_of_a_default_kubelet(
    prism: Installation, reader: str, default_kubelet: None
) -> None:
    assert _seconds_to_reach(prism.cluster, reader, 0.75, within=120) < 90


def test_no_part_of_the_settings_is_mounted_by_subpath(prism: Installation) -> None:
    for runtime in prism.cluster.get("clusterservingruntimes")["items"]:
        mounts = runtime["spec"]["containers"][0]["volumeMounts"]
        assert [one for one in mounts if "subPath" in one] == [], "an edit would never arrive"
