"""How a change is tried on some pods before all get it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.config.schema import Rollout
from prism.config.status import Phase, RolloutStatus, StableSettings, Verdict
from prism_operator.figures import BOUNDS, Figures
from prism_operator.rollout import (
    ANNOUNCE_SECONDS,
    RUNNING,
    PodView,
    TargetView,
    Window,
    begin,
    judged,
    step,
    tried_pods,
    wanted_pods,
)

OLD, NEW = "old", "new"
STABLE = StableSettings(generation=1)


def counts(requests: int, seconds: float = 0.1, failed: int = 0) -> Figures:
    """The counters of a pod that served so many requests, all as fast."""
    ttft = tuple(float(requests if bound >= seconds else 0) for bound in BOUNDS)
    return Figures(ttft, finished=float(requests - failed), failed=float(failed))


@dataclass
class Trial:
    """A service of some pods, and the trial of a change on them."""

    pods: dict[str, PodView]
    rollout: Rollout = field(default_factory=lambda: Rollout(watch_seconds=60.0, min_samples=10))
    now: float = 1_000_000.0
    window: Window = field(default_factory=Window)
    state: RolloutStatus = field(init=False)

    def __post_init__(self) -> None:
        self.state = begin(2, STABLE, self.targets, self.rollout, self.now)

    @property
    def targets(self) -> tuple[TargetView, ...]:
        return (TargetView("team-a", "s", tuple(self.pods.values())),)

    @property
    def tried(self) -> tuple[str, ...]:
        return tried_pods(self.state).get(("team-a", "s"), ())

    def change(self, *names: str, **values: object) -> None:
        for name in names:
            self.pods[name] = replace(self.pods[name], **values)  # type: ignore[arg-type]

    def pass_time(self, seconds: float = 0.0) -> RolloutStatus:
        self.now += seconds
        self.state, self.window = step(self.state, self.window, self.targets, self.rollout, NEW, self.now)
        return self.state

    def serve(self, name: str, figures: Figures) -> None:
        self.change(name, figures=figures, taken=self.now)

    def obey(self) -> None:
        """The tried pods obey the change; the window begins, and every pod is asked in it."""
        self.change(*self.tried, digest=NEW)
        self.pass_time(1)
        self.now += 2
        for name in self.pods:
            self.serve(name, counts(0))
        self.pass_time()


def trial(pods: int = 3, **values: object) -> Trial:
    names = [f"p{number}" for number in range(pods)]
    return Trial({name: PodView(name, True, f"life-{name}", OLD) for name in names}, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("canary", "ready", "wanted"),
    [
        (1, 3, 1),
        (5, 3, 2),
        ("10%", 3, 1),
        ("34%", 3, 2),
        ("100%", 3, 2),
        ("1%", 200, 2),
        (1, 1, 0),
        ("50%", 0, 0),
        ("50%", 900, 100),
    ],
)
def test_a_percentage_rounds_up_and_one_pod_is_left_out(canary: int | str, ready: int, wanted: int) -> None:
    assert wanted_pods(canary, ready) == wanted


def test_the_window_begins_when_every_tried_pod_obeys() -> None:
    one = trial(rollout=Rollout(canary=2, watch_seconds=60.0))
    one.change(one.tried[0], digest=NEW)
    assert one.pass_time(5).phase is Phase.STARTING
    one.change(*one.tried, digest=NEW)
    assert one.pass_time(5).phase is Phase.WATCHING


def test_a_change_as_good_as_before_goes_to_all() -> None:
    one = trial()
    one.obey()
    for name in one.pods:
        one.serve(name, counts(100))
    ended = one.pass_time(60)
    assert (ended.phase, ended.verdict) == (Phase.PROMOTED, Verdict.PASSED)


def test_a_verdict_waits_for_pods_that_did_not_answer_just_then() -> None:
    one = trial()
    one.obey()
    for name in one.pods:
        one.serve(name, counts(100))
    tried = one.tried[0]
    said = one.pods[tried]
    one.change(tried, figures=None)
    assert one.pass_time(60).phase is Phase.WATCHING
    one.pods[tried] = said
    assert one.pass_time(5).verdict is Verdict.PASSED


def test_a_verdict_does_not_wait_for_ever() -> None:
    one = trial()
    one.obey()
    one.change(one.tried[0], figures=None)
    assert one.pass_time(60 + ANNOUNCE_SECONDS).verdict is Verdict.INCONCLUSIVE


def test_a_slower_change_is_withdrawn_with_both_figures() -> None:
    one = trial()
    one.obey()
    for name in one.pods:
        one.serve(name, counts(100, 0.5 if name in one.tried else 0.1))
    ended = one.pass_time(60)
    assert (ended.phase, ended.verdict) == (Phase.WITHDRAWN, Verdict.REGRESSED)
    assert "0.5 s on the tried pods, 0.1 s on the others" in ended.message


def test_a_change_that_fails_requests_is_withdrawn_though_no_first_token_was_slow() -> None:
    one = trial()
    one.obey()
    for name in one.pods:
        one.serve(name, Figures(failed=100.0) if name in one.tried else counts(100))
    ended = one.pass_time(60)
    assert ended.verdict is Verdict.REGRESSED
    assert "100.00% of requests failed" in ended.message


def test_too_few_requests_on_one_side_are_inconclusive() -> None:
    one = trial()
    one.obey()
    for name in one.pods:
        one.serve(name, counts(9 if name in one.tried else 100))
    ended = one.pass_time(60)
    assert (ended.phase, ended.verdict) == (Phase.WITHDRAWN, Verdict.INCONCLUSIVE)


def test_requests_before_the_window_do_not_count() -> None:
    one = trial()
    for name in one.pods:
        one.serve(name, counts(1000, 5.0))
    one.change(*one.tried, digest=NEW)
    one.pass_time(1)
    one.now += 2
    for name in one.pods:
        one.serve(name, counts(1000, 5.0))
    one.pass_time()
    one.now += 60
    for name in one.pods:
        one.serve(name, counts(1000, 5.0) + counts(100, 0.1))
    ended = one.pass_time()
    assert ended.verdict is Verdict.PASSED
    assert ended.targets[0].canary is not None
    assert ended.targets[0].canary.requests == 100


def test_a_service_of_one_pod_is_inconclusive_at_once() -> None:
    assert (trial(1).state.phase, trial(1).state.verdict) == (Phase.WITHDRAWN, Verdict.INCONCLUSIVE)


def test_one_ready_pod_of_two_is_inconclusive_after_a_while() -> None:
    one = trial(2)
    one.change("p0", ready=False)
    assert one.pass_time(1).phase is Phase.STARTING
    assert one.pass_time(ANNOUNCE_SECONDS).verdict is Verdict.INCONCLUSIVE


def test_without_any_pod_there_is_nothing_to_try_on() -> None:
    assert trial(0).state.phase is Phase.PROMOTED


def test_pods_that_do_not_obey_in_time_end_the_trial() -> None:
    one = trial()
    one.pass_time(ANNOUNCE_SECONDS - 1)
    assert one.state.phase is Phase.STARTING
    ended = one.pass_time(2)
    assert (ended.verdict, ended.phase) == (Verdict.INCONCLUSIVE, Phase.WITHDRAWN)
    assert "p0" in ended.message


@pytest.mark.parametrize("how", ["gone", "not ready", "restarted"])
def test_a_lost_pod_is_replaced_once_and_the_window_begins_again(how: str) -> None:
    one = trial()
    one.obey()
    (lost,) = one.tried
    lose(one, lost, how)
    again = one.pass_time(5)
    assert (again.phase, again.restarts) == (Phase.STARTING, 1)
    assert one.tried
    assert lost not in one.tried


def lose(one: Trial, name: str, how: str) -> None:
    if how == "gone":
        del one.pods[name]
    elif how == "not ready":
        one.change(name, ready=False)
    else:
        one.change(name, life="another")


def test_a_second_loss_ends_the_trial() -> None:
    one = trial(4)
    for _ in range(2):
        one.obey()
        assert one.state.phase is Phase.WATCHING
        del one.pods[one.tried[0]]
        one.pass_time(5)
    assert (one.state.phase, one.state.verdict) == (Phase.WITHDRAWN, Verdict.INCONCLUSIVE)


def test_another_process_goes_on_with_the_same_pods_and_a_new_window() -> None:
    one = trial()
    one.obey()
    tried = one.tried
    one.window = Window()
    one.pass_time(50)
    assert (one.state.phase, one.tried) == (Phase.WATCHING, tried)
    for name in one.pods:
        one.serve(name, counts(0))
    one.pass_time(1)
    for name in one.pods:
        one.serve(name, counts(100))
    assert one.pass_time(30).phase is Phase.WATCHING
    assert one.pass_time(30).verdict is Verdict.PASSED


def test_a_restarted_stable_pod_does_not_count() -> None:
    one = trial()
    one.obey()
    for name in one.pods:
        one.serve(name, counts(100))
    one.change("p2", life="another", figures=counts(5000, 50.0))
    ended = one.pass_time(60)
    assert ended.targets[0].stable is not None
    assert ended.targets[0].stable.requests == 100


def test_the_worst_of_several_services_decides() -> None:
    rollout = Rollout(watch_seconds=60.0, min_samples=10)
    good = judged(counts(100), counts(100), rollout)
    bad = judged(counts(100, 1.0), counts(100), rollout)
    assert (good[0], bad[0]) == (Verdict.PASSED, Verdict.REGRESSED)
    one = trial()
    one.obey()
    other = TargetView("team-a", "t", (PodView("q0", True, digest=NEW), PodView("q1", True)))
    both = begin(2, STABLE, (*one.targets, other), rollout, one.now)
    assert set(tried_pods(both)) == {("team-a", "s"), ("team-a", "t")}


def test_more_services_than_a_status_can_hold_are_not_tried() -> None:
    pods = (PodView("a", True), PodView("b", True))
    many = [TargetView("team-a", f"s{number}", pods) for number in range(257)]
    state = begin(2, STABLE, many, Rollout(), 0.0)
    assert (state.phase, state.verdict, state.targets) == (Phase.WITHDRAWN, Verdict.INCONCLUSIVE, ())


def test_a_trial_that_is_over_stays_over() -> None:
    one = trial(1)
    before = one.state
    assert one.pass_time(10_000) == before


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lose", "restart", "unready", "ready", "obey", "ask", "add", "wait", "forget"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(st.integers(0, 5), EVENTS, st.sampled_from([1, 3, "50%", "100%"]))
def test_whatever_happens_one_ready_pod_is_left_out_and_the_trial_ends(
    pods: int, events: list[tuple[str, int]], canary: int | str
) -> None:
    one = trial(pods, rollout=Rollout(canary=canary, watch_seconds=60.0, min_samples=10))
    for what, number in events:
        happen(one, what, f"p{number}")
        before = one.state
        one.pass_time(1)
        if one.state.phase is Phase.STARTING and before.phase in RUNNING:
            ready = [pod.name for pod in one.pods.values() if pod.ready]
            assert len([name for name in one.tried if name in ready]) < max(1, len(ready))
        assert one.state.restarts <= 1
    for _ in range(4):
        one.pass_time(ANNOUNCE_SECONDS + 61)
    assert one.state.phase not in RUNNING
    assert one.state.verdict is not None


def happen(one: Trial, what: str, name: str) -> None:
    if what == "add":
        one.pods.setdefault(name, PodView(name, True, f"new-{name}", OLD))
    elif what == "wait":
        one.now += 30
    elif what == "forget":
        one.window = Window()
    elif name in one.pods:
        if what == "lose":
            del one.pods[name]
        elif what == "obey":
            one.change(*[tried for tried in one.tried if tried in one.pods], digest=NEW)
        elif what == "ask":
            one.serve(name, counts(int(one.now - 999_999)))
        elif what == "restart":
            one.change(name, life=f"{one.now}", digest=OLD)
        else:
            one.change(name, ready=what == "ready")
