"""One operator after the other: what the first began the next goes on with."""

from __future__ import annotations

import json

from prism.config.crd import custom_resource_definition
from realcluster.cluster import HostApiServer
from realcluster.operator_process import RELEASE, Team, Traffic, begin_trial, operator, wait_over


def test_an_operator_killed_during_a_trial_goes_on_from_the_status(with_kinds: HostApiServer, team: Team) -> None:
    flags = ("--ask-seconds=3", "--lease-seconds=4")
    with operator(with_kinds, team.folder, *flags) as first:
        pods = begin_trial(team)
        with Traffic(pods):
            team.wait("it is watched", lambda: team.status()["rollout"]["phase"] == "Watching", seconds=90)
            tried = team.status()["rollout"]["targets"][0]["pods"]
            first.kill()
            with operator(with_kinds, team.folder, *flags):
                assert wait_over(team, 1)["verdict"] == "Passed"
    assert team.status()["rollout"]["targets"][0]["pods"] == tried


def test_the_lease_is_given_back_on_the_way_out(with_kinds: HostApiServer, team: Team) -> None:
    flags = ("--lease-name=handed", "--ask-seconds=3")
    with operator(with_kinds, team.folder, *flags) as first:
        team.wait("the first holds it", lambda: _holder(with_kinds) == first.identity)
        with operator(with_kinds, team.folder, *flags) as second:
            assert first.stop() == 0
            assert team.wait("the second holds it", lambda: _holder(with_kinds) == second.identity) < 5


def test_an_operator_that_cannot_read_the_kinds_says_which(api_server: HostApiServer, team: Team) -> None:
    """A user without any role."""
    config = api_server.client_for("nobody", "nobody")
    with operator(api_server, team.folder, kubeconfig=config, ready=False) as process:
        team.wait("it says what is missing", lambda: "lacks list and watch" in process.probe("readyz")[1])
        assert process.probe("healthz")[0] == 200


def test_an_older_definition_keeps_the_operator_from_writing(with_kinds: HostApiServer, team: Team) -> None:
    older = custom_resource_definition()
    spec = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["limits"]
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    with_kinds.kubectl(*apply, stdin=json.dumps(older))
    try:
        with operator(with_kinds, team.folder, "--lease-name=older", "--resync-seconds=2", ready=False) as process:
            team.wait("it says what would be lost", lambda: "would drop spec.limits" in process.probe("readyz")[1])
            assert "older" not in with_kinds.kubectl("get", "leases", "-n", RELEASE)
            with_kinds.kubectl(*apply, stdin=json.dumps(custom_resource_definition()))
            process.wait_ready()
            with_kinds.kubectl(*apply, stdin=json.dumps(older))
            team.wait("it notices later too", lambda: "would drop spec.limits" in process.probe("readyz")[1])
    finally:
        with_kinds.kubectl(*apply, stdin=json.dumps(custom_resource_definition()))


def test_nudged_pods_carry_the_digest_that_they_should_obey(with_kinds: HostApiServer, team: Team) -> None:
    with operator(with_kinds, team.folder, "--lease-name=nudge", "--nudge-pods"):
        team.serve("s")
        (pod,) = team.start_pods("s", 1)
        pod.still = True
        team.configure(scheduler={"coldLane": {"quota": 0.2}})
        team.wait("the pod is nudged", pod.nudge)
        pod.still = False
        team.wait("it is applied", lambda: team.condition() == ("True", "Applied"))
        assert pod.admin.settings.in_force.digest == pod.nudge()


def _holder(server: HostApiServer) -> str:
    where = ["lease", "handed", "-n", "prism-system", "-o", "jsonpath={.spec.holderIdentity}"]
    return server.kubectl("get", *where, check=False).strip()
