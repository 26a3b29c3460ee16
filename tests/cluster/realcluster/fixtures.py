"""Real Kubernetes for the tests, made once a session however many folders ask for it.

`api_server` is etcd and kube-apiserver (seconds, no root), `cluster` all of it, `prism` the chart installed there. What
cannot run on a machine is skipped with a sentence that says what is missing; with `PRISM_CLUSTER_REQUIRED` set, as in
CI, it fails instead.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import pytest

from prism.bench.models import smollm2
from realcluster.cluster import Cluster, HostApiServer, missing_for_cluster, tools
from realcluster.controlplane import temporary_folder
from realcluster.helm import Helm
from realcluster.images import REPOSITORY, Images, missing_programs
from realcluster.installation import RESTRICTED, Installation
from realcluster.jaeger import OTLP_ENDPOINT
from realcluster.kserve import crd_folder
from realcluster.kserve_standin import KServeStandIn
from realcluster.predictors import Predictor, inference_service, volumes, with_libraries
from realcluster.programs import HELM, CannotBuild, build, only_one
from realcluster.settings import prism_config

_Arguments = ParamSpec("_Arguments")
_Made = TypeVar("_Made")

_LONGEST_TEST_S = 900
"""Of a test with what it brings up: a cluster, an installation, a predictor."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of these two folders, so that the quick test command leaves them out."""
    for item in items:
        folder = item.path.parent.name
        if folder in ("cluster", "e2e") and item.path.parent.parent.name == "tests":
            item.add_marker(folder)
            if "cluster" in getattr(item, "fixturenames", ()):
                item.add_marker("nodes")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(_LONGEST_TEST_S))


def _cannot(reason: str) -> NoReturn:
    if os.environ.get("PRISM_CLUSTER_REQUIRED"):
        pytest.fail(f"the cluster tests cannot run here: {reason}")
    pytest.skip(f"the cluster tests cannot run here: {reason}")


def _or_skip(make: Callable[_Arguments, _Made], *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Made:
    try:
        return make(*arguments, **named)
    except CannotBuild as why:
        _cannot(str(why))


@pytest.fixture(scope="session")
def kserve_crds() -> Path:
    """The folder with KServe's own CRDs."""
    return _or_skip(crd_folder)


@pytest.fixture(scope="session")
def helm_binary() -> Path:
    """Helm, built from its module."""
    return _or_skip(build, HELM) / "helm"


@pytest.fixture(scope="session")
def api_server() -> Iterator[HostApiServer]:
    """An API server without nodes."""
    yield from running_api_server()


def running_api_server() -> Iterator[HostApiServer]:
    """Starts one and ends it afterwards, for tests that need one of their own."""
    for folder in temporary_folder("api"):
        server = _or_skip(HostApiServer, folder)
        try:
            server.start()
            yield server
        finally:
            server.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A whole cluster with one node; its logs go to `PRISM_CLUSTER_LOGS`, or to .cache/cluster-logs."""
    if reason := missing_for_cluster():
        _cannot(reason)
    if missing := missing_programs():
        _cannot(f"missing: {', '.join(missing)}")
    # Addresses and interfaces are fixed: another run on this machine waits here.
    with only_one("cluster"):
        for folder in temporary_folder("k8s"):
            whole = Cluster(folder, _or_skip(tools))
            images = [_or_skip(Images().pause)]
            try:
                whole.start(images)
                yield whole
            finally:
                _keep_logs(whole)
                whole.close()


def _keep_logs(cluster: Cluster) -> None:
    kept = Path(os.environ.get("PRISM_CLUSTER_LOGS") or REPOSITORY / ".cache" / "cluster-logs")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for log in cluster.folder.glob("*.log"):
        shutil.copy(log, kept / log.name)
    pods = cluster.folder / "pods"
    if pods.is_dir():
        shutil.copytree(pods, kept / "pods", ignore_dangling_symlinks=True)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own in which only pods of restricted security may run; goes away afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
    yield name
    # Kubernetes waits five seconds before it looks at what is in there; no other test has to.
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def helm(cluster: Cluster, helm_binary: Path) -> Helm:
    """Helm on the cluster, as its administrator."""
    return Helm(helm_binary, cluster.api_server.kubeconfig, cluster.folder)


@pytest.fixture(scope="session")
def ready_for_chart(cluster: Cluster, kserve_crds: Path) -> None:
    """KServe's CRDs are served, and the node has the images."""
    cluster.apply_folder(kserve_crds)
    images = Images()
    for image in (images.operator, images.predictor):
        cluster.node.import_image(_or_skip(image).archive)


@pytest.fixture(scope="session")
def prism(cluster: Cluster, helm: Helm, ready_for_chart: None) -> Installation:
    """PRISM installed with Helm, for the whole cluster, in the namespace prism-system."""
    installation = Installation(cluster, helm)
    installation.install({"otlp": {"endpoint": OTLP_ENDPOINT}})
    return installation


@pytest.fixture(scope="session")
def predictor(cluster: Cluster, prism: Installation) -> Iterator[Predictor]:
    """The InferenceService `smollm2` of the documentation's example, running, with a PrismConfig that selects it."""
    namespace, model = "team-a", smollm2(lambda *_: None)
    prism.make_namespace(namespace)
    cluster.apply(*volumes(namespace, model.parent), prism_config(namespace, quota=0.1))
    labels = {"serving.prism.dev/config": "rag"}
    cluster.apply(with_libraries(inference_service("smollm2", namespace, model.name, labels=labels)))
    stand_in = KServeStandIn(cluster.api_server, [namespace])
    stand_in.start()
    running = Predictor(cluster, "smollm2", namespace)
    running.wait_ready()
    yield running
    stand_in.close()
