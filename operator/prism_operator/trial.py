"""Which trial a config is in after a look: begun, carried on, ended, or none. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from prism.config.document import Settings
from prism.config.status import Phase, RolloutStatus, Verdict
from prism_operator.documents import same_effect, settings_of, settled
from prism_operator.rollout import RUNNING, TargetView, Window, begin, step
from prism_operator.select import Judged


def carry_on(
    judged: Judged,
    before: RolloutStatus | None,
    window: Window,
    last_good: Settings | None,
    targets: Sequence[TargetView],
    now: float,
) -> tuple[RolloutStatus | None, Window]:
    """The trial of the current spec and its window; `last_good` is what was in force before that spec."""
    config, spec = judged.config, judged.spec
    of_this = before is not None and before.generation == config.meta.generation
    if spec is None:
        return (before if of_this else _stopped(before)), Window()
    current = settings_of(config, spec)
    if spec.rollout is None or (not of_this and same_effect(current, last_good)):
        return None, Window()
    if before is None or not of_this:
        stable = before.stable if before is not None else None
        kept = stable or (settled(last_good) if last_good is not None else None)
        after, window = begin(config.meta.generation, kept, targets, spec.rollout, now), Window()
    else:
        after, window = step(before, window, targets, spec.rollout, current.digest, now)
    if after.phase is Phase.PROMOTED and after is not before:
        # What the next change is compared with.
        after = after.model_copy(update={"stable": settled(current)})
    return after, window


def _stopped(trial: RolloutStatus | None) -> RolloutStatus | None:
    """A trial whose spec was replaced by one that cannot be read: it keeps what was stable."""
    if trial is None or trial.phase not in RUNNING:
        return trial
    told = {"phase": Phase.WITHDRAWN, "verdict": Verdict.INCONCLUSIVE, "message": "the spec was changed meanwhile"}
    return trial.model_copy(update=told)
