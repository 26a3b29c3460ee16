"""Real Kubernetes for the tests: `api_server` (etcd and kube-apiserver, seconds, no root) and `cluster` (all of it).

Both are made once a session. What cannot run on a machine is skipped with a sentence that says what is missing; with
`PRISM_CLUSTER_REQUIRED` set, as in CI, it fails instead.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from realcluster.cluster import Cluster, HostApiServer, missing_for_cluster, tools
from realcluster.controlplane import temporary_folder
from realcluster.images import Images, missing_programs
from realcluster.kserve import crd_folder
from realcluster.programs import HELM, CannotBuild, build, only_one

REPOSITORY = Path(__file__).parents[2]


def _cannot(reason: str) -> None:
    if os.environ.get("PRISM_CLUSTER_REQUIRED"):
        pytest.fail(f"the cluster tests cannot run here: {reason}")
    pytest.skip(f"the cluster tests cannot run here: {reason}")


@pytest.fixture(scope="session")
def kserve_crds() -> Path:
    """The folder with KServe's own CRDs."""
    try:
        return crd_folder()
    except CannotBuild as why:
        _cannot(str(why))
        raise


@pytest.fixture(scope="session")
def helm_binary() -> Path:
    """Helm, built from its module."""
    try:
        return build(HELM) / "helm"
    except CannotBuild as why:
        _cannot(str(why))
        raise


@pytest.fixture(scope="session")
def api_server() -> Iterator[HostApiServer]:
    """An API server without nodes."""
    for folder in temporary_folder("api"):
        try:
            server = HostApiServer(folder)
        except CannotBuild as why:
            _cannot(str(why))
            raise
        try:
            server.start()
            yield server
        finally:
            server.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A whole cluster with one node; its logs are kept where `PRISM_CLUSTER_LOGS` says when a test fails."""
    if reason := missing_for_cluster() or (f"missing: {', '.join(missing_programs())}" if missing_programs() else None):
        _cannot(reason)
    # Addresses and interfaces are fixed: another run on this machine waits here.
    with only_one("cluster"):
        for folder in temporary_folder("k8s"):
            yield from _running_cluster(folder)


def _running_cluster(folder: Path) -> Iterator[Cluster]:
    try:
        whole, images = Cluster(folder, tools()), [Images().pause()]
    except CannotBuild as why:
        _cannot(str(why))
        raise
    try:
        whole.start(images)
        yield whole
    finally:
        _keep_logs(folder)
        whole.close()


def _keep_logs(folder: Path) -> None:
    kept = Path(os.environ.get("PRISM_CLUSTER_LOGS") or REPOSITORY / ".cache" / "cluster-logs")
    kept.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, kept / log.name)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own in which only pods of restricted security may run; deleted afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield name
    cluster.kubectl("delete", "namespace", name, "--timeout=90s")
