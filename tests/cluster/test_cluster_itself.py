"""The test cluster is a cluster: pods run, answer and end, and nothing of it stays behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from realcluster.cluster import Cluster, HostApiServer, leftovers
from realcluster.controlplane import KubectlFailed
from realcluster.images import OPERATOR_IMAGE


def test_the_api_server_serves_without_a_node(api_server: HostApiServer) -> None:
    assert api_server.get("nodes")["items"] == []


def test_its_client_programs_are_of_its_version(api_server: HostApiServer) -> None:
    versions = api_server.kubectl("version")
    assert versions.count("v1.34.4") == 2


def test_a_write_is_in_the_audit_log(api_server: HostApiServer) -> None:
    before = api_server.audit_position()
    api_server.kubectl("create", "configmap", "seen", "--from-literal=a=b")
    assert [event["verb"] for event in api_server.writes("admin", after=before)] == ["create"]


def test_the_cluster_is_up_with_its_node(cluster: Cluster, record_property: Callable[[str, object], None]) -> None:
    # How long it may take depends on what else the machine does: it is told and not judged.
    record_property("started_within_s", cluster.started_within_s)
    assert [node["metadata"]["name"] for node in cluster.get("nodes")["items"]] == ["node1"]


def test_a_process_that_a_cluster_left_is_noticed(tmp_path: Path) -> None:
    left = subprocess.Popen([sys.executable, "-c", "input()", str(tmp_path)], stdin=subprocess.PIPE)
    try:
        assert f"process {left.pid}" in leftovers(tmp_path)
    finally:
        left.communicate(b"\n")


def test_a_running_cluster_has_cgroups_and_an_interface_to_clean_up(cluster: Cluster) -> None:
    kinds = {one.split()[0] for one in leftovers(cluster.folder)}
    assert {"cgroup", "interface", "process"} <= kinds


def _pod(namespace: str, *command: str) -> dict[str, Any]:
    container = {
        "name": "it",
        "image": f"{OPERATOR_IMAGE}:test",
        "imagePullPolicy": "Never",
        "command": list(command),
        "securityContext": {
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "it", "namespace": namespace}, "spec": spec}


def test_a_pod_finds_a_service_by_its_name(cluster: Cluster, namespace: str, ready_for_chart: None) -> None:
    code = "import socket; print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))"
    cluster.apply(_pod(namespace, "python3", "-c", code))
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/it", "-n", namespace, "--timeout=60s")
    assert cluster.kubectl("logs", "it", "-n", namespace).strip() == "10.96.0.1"


def test_a_privileged_pod_is_refused_where_only_restricted_ones_may_run(cluster: Cluster, namespace: str) -> None:
    pod = _pod(namespace, "true")
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        cluster.apply(pod)
