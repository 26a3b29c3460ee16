"""What the chart's hooks do to the API server, run by hand against one without nodes; and whose the CRD is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from prism.errors import DeploymentError
from prism_operator.api import Api, connect
from prism_operator.install import check_operator, clean_up, create_default, main
from realcluster.cluster import HostApiServer
from realcluster.controlplane import KubectlFailed
from realcluster.fixtures import running_api_server
from realcluster.helm import Helm
from realcluster.installation import CHART
from realcluster.namespaces import wait_for

CRD = "prismconfigs.serving.prism.dev"
# Neither KServe nor a kubelet is here.
ALONE = {"runtimes": {"gpu": {"enabled": False}, "cpu": {"enabled": False}}}
MADE_BY_OPERATOR = {"app.kubernetes.io/managed-by": "prism-operator"}


@pytest.fixture(scope="module")
def api_server() -> Iterator[HostApiServer]:
    """One of its own: the CRD comes and goes here."""
    yield from running_api_server()


@pytest.fixture
def api(api_server: HostApiServer) -> Api:
    return connect(str(api_server.kubeconfig), None)


@pytest.fixture
def bare_helm(helm_binary: Path, api_server: HostApiServer, tmp_path: Path) -> Helm:
    return Helm(helm_binary, api_server.kubeconfig, tmp_path)


@pytest.fixture
def namespaces(api_server: HostApiServer) -> Iterator[tuple[str, str]]:
    """Two namespaces; the CRD and what Helm has put anywhere go with the test."""
    names = ("setup-one", "setup-two")
    for name in names:
        api_server.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield names
    api_server.kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=60s")
    for name in names:
        # No controller empties a namespace here.
        kinds = "secrets,deployments,services,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets"
        api_server.kubectl("delete", f"{kinds},configmaps,leases", "--all", "-n", name, "--wait=false")
    api_server.kubectl("delete", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/part-of=prism")


@pytest.fixture
def crd(api_server: HostApiServer, bare_helm: Helm, namespaces: tuple[str, str]) -> None:
    """The CRD of this version, served."""
    definition = bare_helm.run("template", "prism", str(CHART), "-s", "templates/crd-prismconfigs.yaml")
    api_server.kubectl("apply", "--server-side", "-f", "-", stdin=definition)
    api_server.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")
    wait_for("PrismConfigs are served", lambda: _served(api_server), seconds=20)


def _served(api_server: HostApiServer) -> bool:
    try:
        return api_server.kubectl("get", "prismconfigs", "-A") is not None
    except KubectlFailed:
        return False


def _owner(api_server: HostApiServer) -> str:
    return str(api_server.get("crd", CRD)["metadata"]["annotations"].get("meta.helm.sh/release-name", ""))


def _kinds(manifest: str) -> set[str]:
    return {one["kind"] for one in yaml.safe_load_all(manifest) if one}


def test_crd_of_another_release_is_taken_over_and_upgraded_from_then_on(
    api_server: HostApiServer, bare_helm: Helm, namespaces: tuple[str, str]
) -> None:
    one, two = namespaces
    bare_helm.run("install", "first", str(CHART), "-n", one, "--no-hooks", values=ALONE)
    bare_helm.run("uninstall", "first", "-n", one, "--no-hooks")
    assert _owner(api_server) == "first", "an uninstall keeps the CRD"

    bare_helm.run("install", "second", str(CHART), "-n", two, "--no-hooks", values=ALONE)
    manifest = bare_helm.run("get", "manifest", "second", "-n", two)
    hooks = bare_helm.run("get", "hooks", "second", "-n", two)
    assert "CustomResourceDefinition" not in _kinds(manifest)
    assert "second-prism-setup-crd" in hooks

    given = ["--release-name=second", f"--release-namespace={two}"]
    assert main(["--kubeconfig", str(api_server.kubeconfig), "crd", *given]) == 0
    assert _owner(api_server) == "second"

    bare_helm.run("upgrade", "second", str(CHART), "-n", two, "--no-hooks", values=ALONE)
    assert "CustomResourceDefinition" in _kinds(bare_helm.run("get", "manifest", "second", "-n", two))
    assert "second-prism-setup-crd" not in bare_helm.run("get", "hooks", "second", "-n", two)


def test_same_release_finds_its_own_crd_again(
    api_server: HostApiServer, bare_helm: Helm, namespaces: tuple[str, str]
) -> None:
    for _ in range(2):
        bare_helm.run("install", "prism", str(CHART), "-n", namespaces[0], "--no-hooks", values=ALONE)
        assert "setup-crd" not in bare_helm.run("get", "hooks", "prism", "-n", namespaces[0])
        bare_helm.run("uninstall", "prism", "-n", namespaces[0], "--no-hooks")
    assert _owner(api_server) == "prism"


def test_chart_that_leaves_the_crd_to_others_never_asks_for_it(bare_helm: Helm, namespaces: tuple[str, str]) -> None:
    values = {**ALONE, "crds": {"install": False}}
    bare_helm.run("install", "prism", str(CHART), "-n", namespaces[0], "--no-hooks", values=values)
    assert "CustomResourceDefinition" not in _kinds(bare_helm.run("get", "manifest", "prism", "-n", namespaces[0]))
    assert "setup-crd" not in bare_helm.run("get", "hooks", "prism", "-n", namespaces[0])


def _default(api_server: HostApiServer, namespace: str) -> dict[str, Any]:
    spec: dict[str, Any] = api_server.get("prismconfig", "default", "-n", namespace)["spec"]
    return spec


def test_default_config_is_created_once_and_never_changed(
    api_server: HostApiServer, api: Api, namespaces: tuple[str, str], crd: None
) -> None:
    spec = {"scheduler": {"coldLane": {"quota": 0}, "lexicographic": False}, "limits": {"maxWaitingRequests": 1048576}}
    assert create_default(api, namespaces[0], spec, seconds=20)
    assert _default(api_server, namespaces[0]) == spec
    assert not create_default(api, namespaces[0], {}, seconds=20)
    assert _default(api_server, namespaces[0]) == spec


def test_default_config_that_can_never_be_taken_is_refused_at_once(
    api: Api, namespaces: tuple[str, str], crd: None
) -> None:
    wrong = {"scheduler": {"coldLane": {"quota": 10}}}
    with pytest.raises(Exception, match="quota"):
        create_default(api, namespaces[0], wrong, seconds=20)


def test_check_says_so_where_no_operator_answers(
    api_server: HostApiServer, api: Api, namespaces: tuple[str, str], crd: None
) -> None:
    with pytest.raises(DeploymentError, match="The operator said nothing of the PrismConfig probe"):
        check_operator(api, namespaces[0], "probe", seconds=2)
    assert api_server.get("prismconfigs", "-n", namespaces[0])["items"] == [], "it cleans up after itself"


def _objects(namespace: str, labels: dict[str, str], suffix: str) -> list[dict[str, Any]]:
    selector = {"matchLabels": {"app": "any"}}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"prism-admin{suffix}", "namespace": namespace, "labels": labels},
        "spec": {"podSelector": selector},
    }
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": f"answers{suffix}", "namespace": namespace, "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": selector},
    }
    return [policy, budget]


def test_clean_removes_what_the_operator_made_and_nothing_else(
    api_server: HostApiServer, api: Api, namespaces: tuple[str, str]
) -> None:
    one, two = namespaces
    api_server.apply(*_objects(one, MADE_BY_OPERATOR, ""), *_objects(two, MADE_BY_OPERATOR, ""))
    api_server.apply(*_objects(one, {}, "-of-a-user"))
    settings = {"name": "prism-settings-0", "namespace": one, "labels": MADE_BY_OPERATOR}
    api_server.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": settings})
    assert clean_up(api, [one], [], seconds=20) == 2
    assert clean_up(api, [""], [], seconds=20) == 2
    left = api_server.kubectl("get", "networkpolicies,poddisruptionbudgets,configmaps", "-n", one, "-o", "name").split()
    assert left == [
        "networkpolicy.networking.k8s.io/prism-admin-of-a-user",
        "poddisruptionbudget.policy/answers-of-a-user",
        "configmap/prism-settings-0",
    ]


@pytest.mark.parametrize(
    "values",
    [
        ALONE,
        {**ALONE, "rbac": {"clusterScoped": False, "namespaces": ["setup-one", "setup-two"]}},
        {**ALONE, "operator": {"replicas": 2, "nudgePods": True}, "otlp": {"endpoint": "http://jaeger:4317"}},
    ],
)
def test_api_server_takes_all_that_helm_renders(
    api_server: HostApiServer, bare_helm: Helm, namespaces: tuple[str, str], crd: None, values: dict[str, Any]
) -> None:
    rendered = bare_helm.run("template", "prism", str(CHART), "-n", namespaces[0], values=values)
    objects = [one for one in yaml.safe_load_all(rendered) if one]
    # A pod is let in only once its account is there, dry run or not.
    api_server.apply(*(one for one in objects if one["kind"] == "ServiceAccount"))
    options = ["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"]
    said = api_server.kubectl("apply", *options, "-f", "-", stdin=rendered)
    assert said.count("(server dry run)") == len(objects)


def test_settings_of_any_kind_survive_helm_and_the_api_server(
    api_server: HostApiServer, bare_helm: Helm, api: Api, namespaces: tuple[str, str], crd: None
) -> None:
    spec = {"limits": {"maxWaitingRequests": 0, "maxWaitingPromptTokens": 1048576}, "tracing": {"samplingRatio": 0}}
    rendered = bare_helm.run("template", "p", str(CHART), "-n", namespaces[0], values={"defaultConfig": {"spec": spec}})
    (job,) = (one for one in yaml.safe_load_all(rendered) if one and one["metadata"]["name"].endswith("-default"))
    (_, argument) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert create_default(api, namespaces[0], json.loads(argument.partition("=")[2]), seconds=20)
    assert _default(api_server, namespaces[0]) == spec
