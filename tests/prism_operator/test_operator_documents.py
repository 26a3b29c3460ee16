"""What is in force for a config's services, and the documents that say so."""

from __future__ import annotations

from collections.abc import Callable

from prism.config.document import Settings, in_force, parse_document
from prism.config.status import Phase, RolloutStatus, RolloutTarget, Verdict
from prism_operator.documents import DocumentTexts, Plan, document, plan, recorded, settings_of, settled
from prism_operator.objects import Config
from prism_operator.rollout import PodView, TargetView, Window
from prism_operator.select import Judged, judge
from prism_operator.trial import carry_on

Make = Callable[..., Config]

OLD = {"scheduler": {"coldLane": {"quota": 0.2}}}
NEW = {"scheduler": {"coldLane": {"quota": 0.3}}}
TRIED = {**NEW, "rollout": {"canary": 1}}
PODS = (TargetView("team-a", "s", (PodView("a", True), PodView("b", True))),)


def current(judged: Judged) -> Settings:
    assert judged.spec is not None
    return settings_of(judged.config, judged.spec)


def text_of(settings: Settings) -> str:
    return DocumentTexts().text(settings, None, ())


def test_the_operators_own_parts_stay_out_of_the_document(make_config: Make) -> None:
    judged = judge(make_config("rag", {**TRIED, "selector": {"matchLabels": {"a": "b"}}}))
    document_text = text_of(current(judged))
    assert "selector" not in document_text
    assert "rollout" not in document_text


def test_zero_and_false_and_empty_are_kept_to_the_predictor(make_config: Make) -> None:
    spec = {
        "scheduler": {"coldLane": {"quota": 0}, "lexicographic": False, "fairness": {"enabled": False}},
        "limits": {"maxWaitingRequests": 0},
        "tracing": {"samplingRatio": 0},
    }
    settings = in_force(parse_document(text_of(current(judge(make_config("rag", spec)))).encode()), None)
    assert settings.spec.model_dump(mode="json", by_alias=True, exclude_unset=True) == spec


def test_a_pod_has_the_digest_that_the_operator_waits_for(make_config: Make) -> None:
    settings = current(judge(make_config("rag", OLD)))
    assert in_force(parse_document(text_of(settings).encode()), None).digest == settings.digest


def test_without_rollout_a_change_is_for_all_at_once(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    judged = judge(make_config("rag", NEW, generation=2))
    assert plan(judged, None, before) == Plan(current(judged))


def test_a_spec_that_cannot_be_read_leaves_the_last_good_one(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    broken = judge(make_config("rag", {"scheduler": {"coldLane": {"quota": "abc"}}}, generation=2))
    assert plan(broken, None, before).stable == before


def test_a_change_that_is_to_be_tried_waits_for_its_trial(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    assert plan(judge(make_config("rag", TRIED, generation=2)), None, before) == Plan(before)


def test_a_running_trial_names_the_pods(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    judged = judge(make_config("rag", TRIED, generation=2))
    state, _ = carry_on(judged, None, Window(), before, PODS, 0.0)
    stable, candidate, pods = document(plan(judged, state, before), ("team-a", "s"), Settings.defaults())
    assert (stable, candidate, pods) == (before, current(judged), ("a",))
    parsed = parse_document(DocumentTexts().text(stable, candidate, pods).encode())
    assert in_force(parsed, "a").role == "candidate"
    assert in_force(parsed, "b").spec.scheduler.cold_lane.quota == 0.2


def test_a_withdrawn_change_stays_withdrawn_until_the_spec_changes(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    judged = judge(make_config("rag", TRIED, generation=2))
    state = RolloutStatus(generation=2, phase=Phase.WITHDRAWN, verdict=Verdict.REGRESSED, stable=settled(before))
    again, _ = carry_on(judged, state, Window(), before, PODS, 9e9)
    assert again == state
    assert plan(judged, again, None) == Plan(before)


def test_the_next_spec_is_tried_against_what_was_stable(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    state = RolloutStatus(generation=2, phase=Phase.WITHDRAWN, verdict=Verdict.REGRESSED, stable=settled(before))
    next_one = judge(make_config("rag", {"limits": {"maxWaitingRequests": 7}, "rollout": {}}, generation=3))
    again, _ = carry_on(next_one, state, Window(), None, PODS, 0.0)
    assert again is not None
    assert (again.generation, again.phase, again.stable) == (3, Phase.STARTING, settled(before))


def test_a_change_of_rollout_or_selector_alone_is_not_tried(make_config: Make) -> None:
    before = current(judge(make_config("rag", NEW)))
    judged = judge(make_config("rag", {**TRIED, "selector": {}}, generation=2))
    state, _ = carry_on(judged, None, Window(), before, PODS, 0.0)
    assert state is None
    assert plan(judged, state, before) == Plan(current(judged))


def test_a_spec_broken_in_the_middle_of_a_trial_stops_it(make_config: Make) -> None:
    before = current(judge(make_config("rag", OLD)))
    running = RolloutStatus(
        generation=2, phase=Phase.WATCHING, stable=settled(before),
        targets=(RolloutTarget(namespace="team-a", name="s", pods=("a",)),),
    )  # fmt: skip
    broken = judge(make_config("rag", {"oops": 1}, generation=3))
    state, _ = carry_on(broken, running, Window(), None, PODS, 0.0)
    assert state is not None
    assert (state.phase, plan(broken, state, None)) == (Phase.WITHDRAWN, Plan(before))


def test_without_settings_of_its_own_a_service_gets_the_default_configs(make_config: Make) -> None:
    default = current(judge(make_config("default", OLD)))
    assert document(Plan(None), ("team-a", "s"), default) == (default, None, ())


def test_a_record_of_another_config_of_the_same_name_does_not_count(make_config: Make) -> None:
    text = text_of(current(judge(make_config("rag", OLD))))
    assert recorded(make_config("rag", NEW, generation=2), text) is not None
    assert recorded(make_config("rag", NEW, uid="uid-of-a-later-one"), text) is None


def test_a_record_that_somebody_has_spoilt_does_not_count(make_config: Make) -> None:
    assert recorded(make_config("rag"), "stable: {source: team-a/rag, uid: uid-rag") is None
