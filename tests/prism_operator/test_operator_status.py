"""What a PrismConfig's status says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prism.config.status import Live, Phase, PrismConfigStatus, RolloutStatus, RolloutTarget, Verdict
from prism_operator.figures import BOUNDS, Figures
from prism_operator.objects import Config
from prism_operator.select import judge
from prism_operator.status import Findings, PodAnswer, TargetAnswer, build_status, live_figures

Make = Callable[..., Config]
NOW = "2026-03-04T05:06:07Z"
RAG = {"selector": {"matchLabels": {"app": "rag"}}, "scheduler": {"coldLane": {"quota": 0}}}
GOOD, WAITED = PodAnswer("good", True), PodAnswer("waited", False)


def say(config: Config, *pods: PodAnswer, targets: bool = True, **values: Any) -> dict[str, Any]:
    answers = (TargetAnswer("team-a", "s", pods),) if targets else ()
    findings = Findings(judge(config), values.pop("is_default", False), answers, **values)
    return build_status(findings, {}, {}, NOW)


def condition(status: dict[str, Any], kind: str) -> tuple[str, str]:
    (found,) = [one for one in status["conditions"] if one["type"] == kind]
    return found["status"], found["reason"]


def message(status: dict[str, Any], kind: str = "Ready") -> str:
    (found,) = [one["message"] for one in status["conditions"] if one["type"] == kind]
    return str(found)


def test_all_pods_obeying_is_ready(make_config: Make) -> None:
    status = say(make_config("rag", RAG, generation=7), GOOD, GOOD)
    assert condition(status, "Ready") == ("True", "Applied")
    assert (status["applied"], status["observedGeneration"], status["coldQuota"]) == ("2/2", 7, 0)


def test_a_pod_that_is_waited_for_is_propagating_and_not_ready(make_config: Make) -> None:
    status = say(make_config("rag", RAG), GOOD, WAITED)
    assert condition(status, "Propagating") == ("True", "WaitingForPods")
    assert condition(status, "Ready") == ("False", "WaitingForPods")
    assert "90 s" in message(status, "Propagating")


@pytest.mark.parametrize(
    ("pod", "reason", "said"),
    [
        (PodAnswer("p", False, refusal="stable.spec.x is not a field here"), "Refused", "stable.spec.x"),
        (PodAnswer("p", False, trouble="the admin port does not answer"), "Unreachable", "admin port"),
    ],
)
def test_a_pod_that_does_not_obey_says_why(make_config: Make, pod: PodAnswer, reason: str, said: str) -> None:
    status = say(make_config("rag", RAG), GOOD, pod)
    assert condition(status, "Ready") == ("False", reason)
    assert said in message(status)
    assert said in status["targets"][0]["message"]


def test_a_service_without_pods_is_ready_for_them(make_config: Make) -> None:
    assert condition(say(make_config("rag", RAG)), "Ready") == ("True", "NoPods")


def test_a_selector_that_finds_nothing_is_not_ready(make_config: Make) -> None:
    status = say(make_config("rag", RAG), targets=False)
    assert condition(status, "Ready") == ("False", "NoTargets")
    assert "carries the labels" in message(status)


def test_the_default_config_is_ready_though_nothing_needs_it_yet(make_config: Make) -> None:
    assert condition(say(make_config("default"), targets=False, is_default=True), "Ready") == ("True", "NoTargets")


def test_a_selector_of_the_default_config_is_said_to_be_ignored(make_config: Make) -> None:
    status = say(make_config("default", RAG), is_default=True)
    assert "spec.selector is ignored" in message(status, "Accepted")


def test_a_spec_that_cannot_be_read_names_the_field(make_config: Make) -> None:
    status = say(make_config("rag", {"scheduler": {"weights": {"active": "abc"}}}), GOOD)
    assert condition(status, "Accepted") == condition(status, "Ready") == ("False", "Invalid")
    assert message(status).startswith("spec.scheduler.weights.active must be a number, not 'abc'; the last good")


def test_a_field_that_the_chosen_policy_does_not_use_is_named(make_config: Make) -> None:
    status = say(make_config("rag", {**RAG, "scheduler": {"order": "FCFS", "coldLane": {"quota": 0.2}}}), GOOD)
    assert condition(status, "Accepted") == ("True", "Valid")
    assert "order FCFS with retention DemandAware does not use scheduler.coldLane.quota" in message(status, "Accepted")


def test_a_conflict_names_the_service_and_the_older_config(make_config: Make) -> None:
    status = say(make_config("rag", RAG), GOOD, conflicts=(("t", "elder"),))
    assert condition(status, "Ready") == ("False", "Conflict")
    assert message(status).startswith("t: elder is older")
    assert status["conflicts"] == [{"service": "t", "config": "elder"}]


def test_selected_services_without_prism_are_named(make_config: Make) -> None:
    assert "sklearn" in message(say(make_config("rag", RAG), GOOD, strangers=("sklearn",)), "Accepted")


def test_a_failed_write_is_not_ready(make_config: Make) -> None:
    assert condition(say(make_config("rag", RAG), write_failure="full"), "Ready") == ("False", "NotWritten")


def test_a_running_trial_is_not_applied_yet(make_config: Make) -> None:
    target = RolloutTarget(namespace="team-a", name="s", pods=("p",))
    trial = RolloutStatus(generation=1, phase=Phase.WATCHING, targets=(target,))
    status = say(make_config("rag", RAG), GOOD, WAITED, rollout=trial)
    assert condition(status, "Ready") == ("False", "Trying")
    assert status["rollout"]["targets"][0]["pods"] == ["p"]


def test_a_withdrawn_change_says_why(make_config: Make) -> None:
    trial = RolloutStatus(generation=1, phase=Phase.WITHDRAWN, verdict=Verdict.REGRESSED, message="2 s, 1 s")
    status = say(make_config("rag", RAG), WAITED, rollout=trial)
    assert condition(status, "Ready") == ("False", "Regressed")
    assert message(status) == "generation 1 was withdrawn: 2 s, 1 s"


def test_a_condition_keeps_its_time_while_its_status_stays(make_config: Make) -> None:
    findings = Findings(judge(make_config("rag", RAG)), False, (TargetAnswer("team-a", "s", (GOOD,)),))
    status = build_status(findings, {"Ready": "True", "Applied": "False"}, {"Ready": "then", "Applied": "then"}, NOW)
    times = {one["type"]: one["lastTransitionTime"] for one in status["conditions"]}
    assert (times["Ready"], times["Applied"]) == ("then", NOW)


def test_a_status_of_very_many_services_is_bounded_and_names_those_that_lack_something(make_config: Make) -> None:
    many = tuple(TargetAnswer("team-a", f"s{number}", (GOOD,)) for number in range(500))
    lacking = TargetAnswer("team-z", "last", (WAITED,))
    status = build_status(Findings(judge(make_config("rag", RAG)), False, (*many, lacking)), {}, {}, NOW)
    assert (status["targetsTotal"], len(status["targets"]), status["applied"]) == (501, 64, "500/501")
    assert status["targets"][0]["name"] == "last"


def test_what_is_written_is_a_status_by_the_schema(make_config: Make) -> None:
    live = Live(window_seconds=300, hit_rate=0.45, p99_ttft_seconds=0.24)
    status = say(make_config("rag", RAG), GOOD, WAITED, live=live, conflicts=(("t", "elder"),))
    PrismConfigStatus.model_validate(status, by_alias=True, by_name=False)
    assert status["live"] == {"windowSeconds": 300, "hitRate": 0.45, "p99TtftSeconds": 0.24}


def test_live_figures_are_rounded_so_that_noise_is_no_news() -> None:
    def figures(cached: float) -> Figures:
        return Figures(tuple(100.0 if bound >= 0.2 else 0.0 for bound in BOUNDS), 100.0, 0.0, cached, 100_000.0)

    assert live_figures(figures(45_012), 301.0) == live_figures(figures(45_123), 298.0)


def test_no_requests_give_no_live_figures() -> None:
    assert live_figures(Figures(), 300.0) is None
