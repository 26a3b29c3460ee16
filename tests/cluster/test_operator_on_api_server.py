"""The operator against a real API server, with stand-ins for the pods: what the pods say, trials, conflicts, quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from realcluster.cluster import HostApiServer
from realcluster.operator_process import (
    RELEASE,
    TRIAL,
    OperatorProcess,
    Team,
    Traffic,
    begin_trial,
    operator,
    wait_over,
)

QUOTA_2 = {"coldLane": {"quota": 0.2}}
QUOTA_3 = {"coldLane": {"quota": 0.3}}


@pytest.fixture(scope="module")
def running(with_kinds: HostApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    with operator(with_kinds, tmp_path_factory.mktemp("operator"), "--ask-seconds=3") as process:
        yield process


def test_the_status_says_how_many_pods_obey(running: OperatorProcess, team: Team) -> None:
    team.serve("s")
    pods = team.start_pods("s", 3)
    pods[2].still = True
    team.configure(scheduler=QUOTA_2)
    team.wait("two of three obey", lambda: team.status().get("applied") == "2/3")
    assert team.condition("Propagating") == ("True", "WaitingForPods")
    pods[2].still = False
    team.wait("all obey", lambda: team.condition() == ("True", "Applied"))
    assert team.status()["applied"] == "3/3"


def test_a_pod_that_refuses_and_one_that_is_cut_off_are_told_apart(running: OperatorProcess, team: Team) -> None:
    team.serve("s")
    refusing, cut_off = team.start_pods("s", 2)
    refusing.still = True
    refusing.admin.file.write_text("stable: {source: x, generation: 1, spec: {oops: 1}}")
    team.configure(scheduler=QUOTA_2)
    team.wait("the refusal is shown", lambda: team.condition() == ("False", "Refused"))
    assert "stable.spec.oops" in team.message()
    refusing.still = False
    cut_off.close()
    team.configure(scheduler=QUOTA_3)
    team.wait("the silence is shown", lambda: team.condition() == ("False", "Unreachable"))
    assert cut_off.address in team.message()
    team.pods.remove(cut_off)


def test_two_edits_at_once_end_with_the_second(running: OperatorProcess, team: Team) -> None:
    team.serve("s")
    for quota in (0.4, 0.5):
        team.configure(scheduler={"coldLane": {"quota": quota}})
    team.wait(
        "the second edit is in force",
        lambda: team.documents().get("s", {}).get("stable", {}).get("generation") == 2,
        seconds=10,
    )
    assert team.documents()["s"]["stable"]["spec"] == {"scheduler": {"coldLane": {"quota": 0.5}}}


def test_a_config_map_follows_an_edit_within_two_seconds(running: OperatorProcess, team: Team) -> None:
    team.serve("s")
    team.configure(scheduler=QUOTA_2)
    team.wait("the first is there", lambda: "spec" in team.documents().get("s", {}).get("stable", {}))
    team.configure(scheduler=QUOTA_3)

    def followed() -> bool:
        return bool(team.documents()["s"]["stable"]["spec"]["scheduler"] == QUOTA_3)

    assert team.wait("the ConfigMap follows", followed) < 2


def test_a_service_that_no_config_selects_follows_the_default_config(running: OperatorProcess, team: Team) -> None:
    team.serve("s", labels={"other": "label"})
    team.wait("it has the defaults", lambda: team.source("s") == "defaults")
    metadata = {"name": "default", "namespace": RELEASE}
    body = {"apiVersion": "serving.prism.dev/v1alpha1", "kind": "PrismConfig", "metadata": metadata, "spec": {}}
    team.api_server.apply({**body, "spec": {"scheduler": QUOTA_2}})
    try:
        team.wait("it has the default config's", lambda: team.source("s") == f"{RELEASE}/default")
        team.start_pods("s", 1)
        reason = "{.status.conditions[?(@.type=='Applied')].reason}"
        shown = ("get", "prismconfig", "default", "-n", RELEASE, "-o", f"jsonpath={reason}")
        team.wait("its status says so", lambda: team.api_server.kubectl(*shown) == "Applied")
        team.configure("other", scheduler=QUOTA_3)
        team.api_server.kubectl(
            "label", "inferenceservice", "s", "-n", team.namespace, "serving.prism.dev/config=other"
        )
        team.wait("a config of its own goes first", lambda: team.source("s") == f"{team.namespace}/other")
    finally:
        team.api_server.kubectl("delete", "prismconfig", "default", "-n", RELEASE)
    team.api_server.kubectl("delete", "prismconfig", "other", "-n", team.namespace)
    team.wait("it is back at the defaults", lambda: team.source("s") == "defaults")


def test_a_minute_in_which_nothing_happens_has_no_write(running: OperatorProcess, team: Team) -> None:
    team.serve("s")
    team.start_pods("s", 2)
    team.configure(scheduler=QUOTA_2)
    team.wait("it is applied", lambda: team.condition() == ("True", "Applied"))
    time.sleep(3)
    position = team.api_server.audit_position()
    time.sleep(60)
    assert _written(team, position) == []


def _written(team: Team, position: int) -> list[str]:
    """What the operator has written since then, but for its Lease."""
    written = [event["requestURI"] for event in team.api_server.writes("admin", after=position)]
    return [uri for uri in written if "/leases/" not in uri]


def test_live_figures_are_written_once_and_not_while_they_stay(running: OperatorProcess, team: Team) -> None:
    team.serve("s")
    (pod,) = team.start_pods("s", 1)
    team.configure(scheduler=QUOTA_2)
    team.wait("it is applied", lambda: team.condition() == ("True", "Applied"))
    time.sleep(5)
    pod.admin.serve(100, 0.2, cached=0.45)
    team.wait("the figures are shown", lambda: team.status().get("live"), seconds=150)
    live = team.status()["live"]
    assert live["hitRate"] == 0.45
    assert 0.16 <= live["p99TtftSeconds"] <= 0.2
    position = team.api_server.audit_position()
    time.sleep(20)
    assert _written(team, position) == []


def test_a_good_change_is_tried_on_one_pod_and_then_goes_to_all(running: OperatorProcess, team: Team) -> None:
    pods = begin_trial(team)
    with Traffic(pods):
        assert wait_over(team, 1)["verdict"] == "Passed"
        team.wait("all obey", lambda: team.condition() == ("True", "Applied"))
        team.configure(scheduler=QUOTA_3, rollout=TRIAL)
        team.wait("it is tried", lambda: team.documents()["s"].get("candidate"))
        document = team.documents()["s"]
        assert document["stable"]["generation"] == 1
        assert len(document["candidate"]["pods"]) == 1
        assert wait_over(team, 2)["verdict"] == "Passed"
        team.wait("all obey", lambda: team.status().get("applied") == "3/3")
    assert "candidate" not in team.documents()["s"]


def test_a_bad_change_is_withdrawn_with_both_figures_and_not_tried_again(running: OperatorProcess, team: Team) -> None:
    pods = begin_trial(team)
    with Traffic(pods) as traffic:
        wait_over(team, 1)
        traffic.slow = {"candidate"}
        team.configure(scheduler=QUOTA_3, rollout=TRIAL)
        trial = wait_over(team, 2)
    assert (trial["phase"], trial["verdict"]) == ("Withdrawn", "Regressed")
    assert "on the tried pods" in trial["message"]
    team.wait("the candidate is gone", lambda: "candidate" not in team.documents()["s"])
    assert team.documents()["s"]["stable"]["generation"] == 1
    assert team.condition() == ("False", "Regressed")
    time.sleep(5)
    assert "candidate" not in team.documents()["s"]
