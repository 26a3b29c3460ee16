"""The chart's life on a real cluster: install, upgrade, uninstall, and again under another name.

Every namespace here takes restricted pods only, so whatever ran has shown that it may.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from realcluster.cluster import Cluster
from realcluster.helm import Helm
from realcluster.installation import CHART, TEST_VALUES, Installation, merged
from realcluster.namespaces import wait_for

CRD = "prismconfigs.serving.prism.dev"


@pytest.fixture
def installation(cluster: Cluster, helm: Helm, ready_for_chart: None) -> Iterator[Installation]:
    """A release of the test's own, gone afterwards with its namespace and the CRD."""
    made = Installation(cluster, helm, namespace="life", release="prism")
    yield made
    for namespace in ("life", "life-two"):
        if cluster.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "name"):
            for release in helm.releases(namespace):
                helm.run("uninstall", release, "-n", namespace)
            cluster.kubectl("delete", "namespace", namespace, "--timeout=90s")
    cluster.kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=60s")


def _config(namespace: str, name: str = "rag", **spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"serving.prism.dev/config": name}}
    return {
        "apiVersion": "serving.prism.dev/v1alpha1",
        "kind": "PrismConfig",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector, **spec},
    }


def _objects(cluster: Cluster, namespace: str) -> set[str]:
    """What a namespace holds, save what Kubernetes keeps in each and the settings that outlive a release."""
    kinds = "deployments,replicasets,pods,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
    kinds += "networkpolicies,poddisruptionbudgets,leases,prismconfigs,servingruntimes"
    names = cluster.kubectl("get", kinds, "-n", namespace, "-o", "name").split()
    own = ("serviceaccount/default", "configmap/kube-root-ca.crt")
    return {name for name in names if name not in own and not name.startswith("configmap/prism-settings-")}


def _cluster_wide(cluster: Cluster) -> set[str]:
    kinds = "clusterroles,clusterrolebindings,clusterservingruntimes"
    names = cluster.kubectl("get", kinds, "-o", "name").split()
    return {name for name in names if "prism" in name}


def test_installing_gives_a_working_operator_and_the_runtimes(installation: Installation) -> None:
    cluster = installation.cluster
    said = installation.install()
    assert "kubectl" in said, "the notes name the next command"
    assert len(installation.operator_pods()) == 1
    runtimes = cluster.get("clusterservingruntimes")["items"]
    assert {runtime["metadata"]["name"] for runtime in runtimes} == {"prism-cpu", "prism-gpu"}
    assert cluster.get("prismconfig", "default", "-n", installation.namespace)


def test_helm_test_sees_a_prismconfig_accepted(installation: Installation) -> None:
    installation.install()
    said = installation.helm.run("test", "prism", "-n", installation.namespace, "--logs")
    assert "Phase:          Succeeded" in said


def test_uninstalling_leaves_the_crd_and_the_users_configs_and_nothing_else(installation: Installation) -> None:
    cluster = installation.cluster
    installation.install()
    cluster.apply(_config(installation.namespace))
    installation.uninstall()
    wait_for("the release's pods are gone", lambda: not _pods(cluster, installation.namespace), seconds=60)
    left = {
        name for name in _objects(cluster, installation.namespace) if not name.startswith("configmap/prism-settings")
    }
    assert left == {
        "prismconfig.serving.prism.dev/default",
        "prismconfig.serving.prism.dev/rag",
    }
    assert _cluster_wide(cluster) == set()
    assert cluster.kubectl("get", "crd", CRD, "-o", "name")


def test_a_namespace_with_configs_in_it_ends_after_an_uninstall(installation: Installation) -> None:
    cluster = installation.cluster
    installation.install()
    cluster.apply(_config(installation.namespace))
    installation.uninstall()
    began = time.monotonic()
    cluster.kubectl("delete", "namespace", installation.namespace, "--timeout=60s")
    assert time.monotonic() - began < 60


def test_it_installs_again_under_another_name_and_namespace(installation: Installation) -> None:
    cluster = installation.cluster
    installation.install()
    cluster.apply(_config(installation.namespace))
    installation.uninstall()
    other = Installation(cluster, installation.helm, namespace="life-two", release="second")
    other.install()
    assert other.helm.releases("life-two") == {"second": "deployed"}
    assert cluster.get("prismconfig", "rag", "-n", "life"), "a user's config outlives the first release"


def _older_chart(folder: Path) -> Path:
    """The chart of a version before this one, whose CRD lacks a field that this one has."""
    older = folder / "prism"
    shutil.copytree(CHART, older)
    chart = yaml.safe_load((older / "Chart.yaml").read_text())
    (older / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "0.0.1"}))
    changed = 0
    for template in (older / "templates").rglob("*crd*"):
        text = template.read_text()
        older_text = text.replace("lexicographic:", "lexicographicOrder:")
        changed += older_text != text
        template.write_text(older_text)
    assert changed, "no template of the CRD has the field"
    return older


def _served_fields(cluster: Cluster) -> set[str]:
    version = cluster.get("crd", CRD)["spec"]["versions"][0]
    scheduler = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["scheduler"]
    return set(scheduler["properties"])


def test_an_upgrade_upgrades_the_crd(installation: Installation, tmp_path: Path) -> None:
    cluster = installation.cluster
    new, installation.chart = installation.chart, _older_chart(tmp_path)
    # The older operator is not what is tested, and would rightly refuse the older CRD.
    installation.install({"operator": {"replicas": 0}, "defaultConfig": {"create": False}}, wait=False)
    assert "lexicographic" not in _served_fields(cluster)
    installation.upgrade(chart=new)
    assert "lexicographic" in _served_fields(cluster)


def test_the_default_config_is_never_changed_by_an_upgrade(installation: Installation) -> None:
    cluster = installation.cluster
    installation.install({"defaultConfig": {"spec": {"scheduler": {"coldLane": {"quota": 0.25}}}}})
    patch = '{"spec": {"scheduler": {"coldLane": {"quota": 0}}}}'
    cluster.kubectl("patch", "prismconfig", "default", "-n", "life", "--type=merge", "-p", patch)
    installation.upgrade({"defaultConfig": {"spec": {"scheduler": {"coldLane": {"quota": 0.5}}}}})
    found = cluster.get("prismconfig", "default", "-n", "life")
    assert found["spec"]["scheduler"]["coldLane"]["quota"] == 0


def test_a_rollback_takes_the_release_back_and_leaves_the_users_configs(installation: Installation) -> None:
    cluster = installation.cluster
    installation.install()
    cluster.apply(_config("life", scheduler={"coldLane": {"quota": 0}}))
    installation.upgrade({"operator": {"replicas": 2}})
    assert _operator_replicas(cluster) == 2
    installation.rollback()
    assert _operator_replicas(cluster) == 1
    assert cluster.get("prismconfig", "rag", "-n", "life")["spec"]["scheduler"]["coldLane"]["quota"] == 0
    assert cluster.get("prismconfig", "default", "-n", "life")
    assert installation.helm.releases("life") == {"prism": "deployed"}


def _operator_replicas(cluster: Cluster) -> int:
    deployments = cluster.get("deployments", "-n", "life", "-l", "app.kubernetes.io/component=operator")["items"]
    return sum(deployment["spec"]["replicas"] for deployment in deployments)


VALUES: dict[str, dict[str, Any]] = {
    "none": {},
    "one-namespace": {"rbac": {"clusterScoped": False, "namespaces": ["life", "default"]}},
    "everything": {
        "operator": {
            "replicas": 2,
            "nudgePods": True,
            "extraArgs": ["--workers=8"],
            "priorityClassName": "system-cluster-critical",
        },
        "otlp": {"endpoint": "http://collector.observability:4317", "samplingRatio": 0},
        "runtimes": {
            "gpu": {
                "engineArgs": {
                    "max-num-batched-tokens": 1048576,
                    "enable-prefix-caching": False,
                    "speculative-config": {"method": "ngram", "num_speculative_tokens": 4},
                },
                "tolerations": [],
            },
        },
        "imagePullSecrets": [{"name": "registry"}],
        "commonLabels": {"team": "serving"},
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_takes_what_the_chart_renders(installation: Installation, name: str) -> None:
    cluster = installation.cluster
    installation.make_namespace("life")
    rendered = installation.helm.run(
        "template", "prism", str(CHART), "-n", "life", "--no-hooks", values=merged(TEST_VALUES, VALUES[name])
    )
    crds = [one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "CustomResourceDefinition"]
    if crds:
        cluster.apply(*crds)
    said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=rendered)
    assert said.count("(server dry run)") >= 8


def _pods(cluster: Cluster, namespace: str) -> list[Any]:
    return list(cluster.get("pods", "-n", namespace)["items"])
