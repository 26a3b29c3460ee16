"""How a change is tried on some pods before all get it.

    Starting ──every tried pod obeys it──▶ Watching ──the window is over──▶ Promoted
        │                                   │   ▲  │                        Withdrawn (Regressed, Inconclusive)
        │ 180 s                 a pod is    │   │  └──────────────────────────▲
        │                       lost: once ─┘   │ another pod takes its place │
        └──────────────────────────────▶ Withdrawn (Inconclusive) ◀── twice ──┘

The state is `RolloutStatus`, which stands in the PrismConfig's status, so that another process goes on from it. What
is not in it are the counters at the window's begin: a process that takes over begins the window anew. Times are Unix
seconds; states carry them in whole seconds.
"""

from __future__ import annotations

import calendar
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prism.config.schema import Rollout
from prism.config.status import (
    MAX_MESSAGE,
    MAX_TRIED_PODS,
    MAX_TRIED_SERVICES,
    GroupFigures,
    Phase,
    RolloutStatus,
    RolloutTarget,
    StableSettings,
    Verdict,
)
from prism_operator.figures import Figures, total, two_digits
from prism_operator.objects import Key

ANNOUNCE_SECONDS: Final = 180.0
"""How long the tried pods have to obey the change: two sync periods of a default kubelet."""

RUNNING: Final = (Phase.STARTING, Phase.WATCHING)


@dataclass(frozen=True, slots=True)
class PodView:
    """A predictor pod as it was seen last.

    Attributes:
        life: changes whenever its container begins anew.
        digest: of the settings that it says it obeys; empty if it was not heard.
        figures: its counters, taken at `taken`.
    """

    name: str
    ready: bool
    life: str = ""
    digest: str = ""
    figures: Figures | None = None
    taken: float = 0.0


@dataclass(frozen=True, slots=True)
class TargetView:
    """A service that the change is for, and its pods that are not on their way out."""

    namespace: str
    name: str
    pods: tuple[PodView, ...]

    @property
    def key(self) -> Key:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Baseline:
    """A pod's counters at the window's begin, and the life they are of."""

    life: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Window:
    """What is kept in memory of a window.

    Attributes:
        since: when it began, as the state says it; the window of another begin is not this one.
        lives: of the tried pods when it began.
        baselines: by namespace, service and pod.
    """

    since: str = ""
    lives: Mapping[tuple[str, str, str], str] = field(default_factory=dict)
    baselines: Mapping[tuple[str, str, str], Baseline] = field(default_factory=dict)


def begin(
    generation: int, stable: StableSettings | None, targets: Sequence[TargetView], rollout: Rollout, now: float
) -> RolloutStatus:
    """The first state of a change. Services without a pod have nothing to try it on and take no part."""
    tried = [target for target in targets if target.pods]
    state = RolloutStatus(generation=generation, phase=Phase.STARTING, since=_stamp(now), stable=stable)
    if not tried:
        return _ended(state, Verdict.PASSED, "no pod runs yet: all start with it", now)
    if len(tried) > MAX_TRIED_SERVICES:
        sentence = f"{len(tried)} services are more than one trial can hold, {MAX_TRIED_SERVICES}: split the config"
        return _ended(state, Verdict.INCONCLUSIVE, sentence, now)
    alone = next((target for target in tried if len(target.pods) == 1), None)
    if alone is not None:
        sentence = f"{alone.namespace}/{alone.name} has one pod, so nothing is left to compare with"
        return _ended(state, Verdict.INCONCLUSIVE, sentence, now)
    chosen = (RolloutTarget(namespace=target.namespace, name=target.name) for target in tried)
    return _with_pods(state.model_copy(update={"targets": tuple(chosen)}), targets, rollout)


def step(
    state: RolloutStatus,
    window: Window,
    targets: Sequence[TargetView],
    rollout: Rollout,
    digest: str,
    now: float,
) -> tuple[RolloutStatus, Window]:
    """The next state of a running trial, from what is seen now. `digest` is that of the settings that are tried."""
    if state.phase not in RUNNING:
        return state, window
    state = _without_the_gone(state, targets)
    if not state.targets:
        return _ended(state, Verdict.PASSED, "no pod is left to try it on: all start with it", now), Window()
    if state.phase is Phase.STARTING:
        return _starting(state, targets, rollout, digest, now)
    if window.since != state.since:
        # Another process began this window and took its counters with it.
        state = state.model_copy(update={"since": _stamp(now)})
        window = _opened(state, targets)
    lost = _lost(state, window, targets)
    if lost:
        return _replaced(state, targets, rollout, lost, now), Window()
    window = _with_baselines(window, targets)
    over = _seconds(state.since) + rollout.watch_seconds
    silent = any(pod.figures is None for name, pod in _pods(targets).items() if name in _tried(state))
    if now < over or (silent and now < over + ANNOUNCE_SECONDS):
        return state, window
    return _concluded(state, window, targets, rollout, now), Window()


def wanted_pods(canary: int | str, ready: int) -> int:
    """How many of so many ready pods try a change: a percentage rounds up, one pod at least is left out, and
    no more are tried than a document can name."""
    wanted = canary if isinstance(canary, int) else math.ceil(ready * int(canary.removesuffix("%")) / 100)
    return max(0, min(wanted, ready - 1, MAX_TRIED_PODS))


def tried_pods(state: RolloutStatus | None) -> dict[Key, tuple[str, ...]]:
    """The pods that run the change now, by service."""
    if state is None or state.phase not in RUNNING:
        return {}
    return {(target.namespace, target.name): target.pods for target in state.targets}


def judged(canary: Figures, stable: Figures, rollout: Rollout) -> tuple[Verdict, str]:
    """What one service's figures show."""
    least = min(canary.requests, stable.requests)
    if least < rollout.min_samples:
        both = f"{canary.requests:.0f} requests on the tried pods, {stable.requests:.0f} on the others"
        return Verdict.INCONCLUSIVE, f"{both}, and {rollout.min_samples} of each are needed"
    errors, errors_before = canary.error_rate or 0.0, stable.error_rate or 0.0
    if errors > errors_before + rollout.max_error_rate_increase:
        sentence = f"{errors:.2%} of requests failed on the tried pods, {errors_before:.2%} on the others"
        return Verdict.REGRESSED, f"{sentence}, {rollout.max_error_rate_increase:.2%} more are allowed"
    tail, tail_before = canary.quantile(0.99), stable.quantile(0.99)
    if tail is None or tail_before is None:
        return Verdict.INCONCLUSIVE, "no request on one side got as far as a first token"
    both = f"P99 TTFT was {two_digits(tail):g} s on the tried pods, {two_digits(tail_before):g} s on the others"
    if tail > tail_before * rollout.max_p99_regression:
        return Verdict.REGRESSED, f"{both}, {rollout.max_p99_regression:g} times that is allowed"
    return Verdict.PASSED, both


def _starting(
    state: RolloutStatus, targets: Sequence[TargetView], rollout: Rollout, digest: str, now: float
) -> tuple[RolloutStatus, Window]:
    state = _with_pods(state, targets, rollout)
    views = _pods(targets)
    waiting = [name for name in _tried(state) if views[name].digest != digest]
    complete = all(target.pods for target in state.targets)
    if complete and not waiting:
        state = state.model_copy(update={"phase": Phase.WATCHING, "since": _stamp(now)})
        return state, _opened(state, targets)
    if now < _seconds(state.since) + ANNOUNCE_SECONDS:
        return state, Window()
    return _ended(state, Verdict.INCONCLUSIVE, _not_begun(state, waiting), now), Window()


def _not_begun(state: RolloutStatus, waiting: Sequence[tuple[str, str, str]]) -> str:
    short = next((target for target in state.targets if not target.pods), None)
    if short is not None:
        return f"{short.namespace}/{short.name} had fewer than two ready pods for {ANNOUNCE_SECONDS:.0f} s"
    _, _, pod = waiting[0]
    return f"pod {pod} did not obey the change within {ANNOUNCE_SECONDS:.0f} s"


def _with_pods(state: RolloutStatus, targets: Sequence[TargetView], rollout: Rollout) -> RolloutStatus:
    """As many ready pods as are wanted; those that were chosen before stay while they are ready."""
    views = {target.key: target for target in targets}
    chosen = []
    for target in state.targets:
        ready = sorted(pod.name for pod in views[target.namespace, target.name].pods if pod.ready)
        wanted = wanted_pods(rollout.canary, len(ready))
        kept = [name for name in target.pods if name in ready][:wanted]
        others = [name for name in ready if name not in kept]
        pods = tuple(sorted(kept + others[: wanted - len(kept)]))
        chosen.append(target.model_copy(update={"pods": pods}))
    return state.model_copy(update={"targets": tuple(chosen)})


def _without_the_gone(state: RolloutStatus, targets: Sequence[TargetView]) -> RolloutStatus:
    """Services that are no targets any more, or have no pods any more, leave the trial."""
    present = {target.key for target in targets if target.pods}
    left = tuple(target for target in state.targets if (target.namespace, target.name) in present)
    return state if len(left) == len(state.targets) else state.model_copy(update={"targets": left})


def _opened(state: RolloutStatus, targets: Sequence[TargetView]) -> Window:
    views = _pods(targets)
    return Window(state.since, {name: views[name].life for name in _tried(state) if name in views})


def _with_baselines(window: Window, targets: Sequence[TargetView]) -> Window:
    """Each pod's first counters that were taken within the window."""
    begun = _seconds(window.since)
    fresh = {
        name: Baseline(pod.life, pod.figures)
        for name, pod in _pods(targets).items()
        if name not in window.baselines and pod.figures is not None and pod.taken >= begun
    }
    return Window(window.since, window.lives, {**fresh, **window.baselines}) if fresh else window


def _lost(state: RolloutStatus, window: Window, targets: Sequence[TargetView]) -> list[str]:
    """Tried pods that are gone, not ready, or not the process they were."""
    views = _pods(targets)
    return [
        name[2]
        for name in _tried(state)
        if (pod := views.get(name)) is None or not pod.ready or pod.life != window.lives.get(name, pod.life)
    ]


def _replaced(
    state: RolloutStatus, targets: Sequence[TargetView], rollout: Rollout, lost: Sequence[str], now: float
) -> RolloutStatus:
    if state.restarts:
        return _ended(state, Verdict.INCONCLUSIVE, f"a tried pod was lost twice, {lost[0]} last", now)
    without = {target.key: frozenset(lost) for target in targets}
    left = [
        TargetView(view.namespace, view.name, tuple(pod for pod in view.pods if pod.name not in without[view.key]))
        for view in targets
    ]
    again = state.model_copy(update={"phase": Phase.STARTING, "since": _stamp(now), "restarts": 1})
    again = _with_pods(again, left, rollout)
    return again.model_copy(update={"message": f"pod {lost[0]} was lost: another takes its place"})


def _concluded(
    state: RolloutStatus, window: Window, targets: Sequence[TargetView], rollout: Rollout, now: float
) -> RolloutStatus:
    """The verdict: the worst of the services'."""
    views = {target.key: target for target in targets}
    ended = [_compared(one, window, views[one.namespace, one.name], rollout) for one in state.targets]
    worst = min(ended, key=lambda one: _GRAVITY.index(one.verdict or Verdict.INCONCLUSIVE))
    state = state.model_copy(update={"targets": tuple(ended)})
    sentence = f"{worst.namespace}/{worst.name}: {worst.message}"
    return _ended(state, worst.verdict or Verdict.INCONCLUSIVE, sentence, now)


_GRAVITY = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.PASSED)


def _compared(target: RolloutTarget, window: Window, view: TargetView, rollout: Rollout) -> RolloutTarget:
    sides: dict[bool, list[Figures]] = {True: [], False: []}
    for pod in view.pods:
        baseline = window.baselines.get((view.namespace, view.name, pod.name))
        if baseline is None or pod.figures is None or pod.life != baseline.life:
            continue
        between = pod.figures.since(baseline.figures)
        if between is not None:
            sides[pod.name in target.pods].append(between)
    canary, stable = total(sides[True]), total(sides[False])
    verdict, sentence = judged(canary, stable, rollout)
    told = {"verdict": verdict, "message": sentence, "canary": _group(canary), "stable": _group(stable)}
    return target.model_copy(update=told)


def _group(figures: Figures) -> GroupFigures:
    return GroupFigures(
        requests=int(figures.requests),
        p99_ttft_seconds=two_digits(figures.quantile(0.99)),
        error_rate=two_digits(figures.error_rate),
    )


def _ended(state: RolloutStatus, verdict: Verdict, sentence: str, now: float) -> RolloutStatus:
    phase = Phase.PROMOTED if verdict is Verdict.PASSED else Phase.WITHDRAWN
    told = {"phase": phase, "verdict": verdict, "message": sentence[:MAX_MESSAGE], "since": _stamp(now)}
    return state.model_copy(update=told)


def _tried(state: RolloutStatus) -> list[tuple[str, str, str]]:
    return [(target.namespace, target.name, pod) for target in state.targets for pod in target.pods]


def _pods(targets: Iterable[TargetView]) -> dict[tuple[str, str, str], PodView]:
    return {(target.namespace, target.name, pod.name): pod for target in targets for pod in target.pods}


def _stamp(now: float) -> str:
    # Rounded up: counters taken before a window's begin must not look as if they were taken in it.
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(math.ceil(now)))


def _seconds(stamp: str) -> float:
    """The Unix time of a stamp; 0 for what is none."""
    try:
        return float(calendar.timegm(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return 0.0
