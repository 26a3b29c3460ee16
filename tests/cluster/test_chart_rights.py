"""The operator with the rights that the chart grants it, and with no others, against a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from realcluster.cluster import HostApiServer
from realcluster.helm import Helm
from realcluster.installation import CHART
from realcluster.operator_process import RELEASE, Team, operator

GRANTED = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServingRuntime")
NUDGE = "serving.prism.dev/settings"


def _is_hook(manifest: dict[str, Any]) -> bool:
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def _kubeconfig(server: HostApiServer, folder: Path) -> Path:
    """One for the operator's ServiceAccount."""
    config = yaml.safe_load(server.kubeconfig.read_text())
    token = server.kubectl("create", "token", "prism-operator", "-n", RELEASE).strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def _operator_of_chart(server: HostApiServer, helm: Helm, folder: Path, values: dict[str, Any]) -> Iterator[Path]:
    """The operator with the chart's arguments, as its ServiceAccount; gives the path of its log."""
    rendered = helm.run("template", "prism", str(CHART), "-n", RELEASE, values=values)
    objects = [one for one in yaml.safe_load_all(rendered) if one and not _is_hook(one)]
    rights = [one for one in objects if one["kind"] in GRANTED]
    server.apply(*rights)
    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    try:
        with operator(server, folder, *arguments, kubeconfig=_kubeconfig(server, folder)) as process:
            yield folder / f"{process.identity}.log"
    finally:
        server.kubectl("delete", "-f", "-", "--wait=false", stdin=yaml.safe_dump_all(rights))


@pytest.fixture
def own_helm(helm_binary: Path, with_kinds: HostApiServer, tmp_path: Path) -> Helm:
    return Helm(helm_binary, with_kinds.kubeconfig, tmp_path)


def _does_all_its_work(team: Team) -> None:
    """Settings, policy, budget, status, and the touched pod: each of them a right."""
    team.serve("s")
    (pod,) = team.start_pods("s", 1)
    team.configure(scheduler={"coldLane": {"quota": 0.2}})
    team.wait("the pod obeys", lambda: team.condition() == ("True", "Applied"))
    made = team.api_server.kubectl("get", "networkpolicies,poddisruptionbudgets", "-n", team.namespace, "-o", "name")
    assert made.split() == ["networkpolicy.networking.k8s.io/prism-admin", "poddisruptionbudget.policy/prism-s"]
    touched = team.api_server.get("pod", pod.name, "-n", team.namespace)["metadata"].get("annotations", {})
    assert NUDGE in touched
    team.api_server.kubectl("delete", "inferenceservice", "s", "-n", team.namespace)
    team.wait("what was made for the service is gone", lambda: _nothing_made(team))


def _nothing_made(team: Team) -> bool:
    kinds = "networkpolicies,poddisruptionbudgets"
    return not team.api_server.kubectl("get", kinds, "-n", team.namespace, "-o", "name").split()


def test_cluster_role_is_enough(with_kinds: HostApiServer, own_helm: Helm, team: Team, tmp_path: Path) -> None:
    values = {"operator": {"nudgePods": True}}
    with _operator_of_chart(with_kinds, own_helm, tmp_path, values) as log:
        _does_all_its_work(team)
    assert "403" not in log.read_text()


def test_roles_are_enough_in_their_namespaces_and_reach_no_other(
    with_kinds: HostApiServer, own_helm: Helm, team: Team, tmp_path: Path
) -> None:
    other = Team(with_kinds, tmp_path)
    other.serve("s")
    other.configure(scheduler={"coldLane": {"quota": 0.2}})
    scope = {"clusterScoped": False, "namespaces": [team.namespace]}
    try:
        with _operator_of_chart(
            with_kinds, own_helm, tmp_path, {"rbac": scope, "operator": {"nudgePods": True}}
        ) as log:
            _does_all_its_work(team)
        assert "403" not in log.read_text()
        assert other.documents() == {}
        assert other.status() == {}
    finally:
        other.close()
