"""What a PrismConfig's status says. Pure: from what was decided and what the pods answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prism.config.schema import PrismSpec, unused_fields
from prism.config.status import (
    MAX_LISTED,
    MAX_MESSAGE,
    Condition,
    ConditionStatus,
    ConditionType,
    Live,
    Phase,
    PrismConfigStatus,
    RolloutStatus,
    ServiceConflict,
    Target,
)
from prism_operator.figures import Figures, two_digits
from prism_operator.objects import Json
from prism_operator.rollout import RUNNING
from prism_operator.select import Judged

KUBELET_SECONDS: Final = 90
"""How long a default kubelet may take to bring a changed ConfigMap into a pod."""

_NAMED = 3


@dataclass(frozen=True, slots=True)
class PodAnswer:
    """What is known of one pod of a target.

    Attributes:
        applied: whether it says that it obeys what it should.
        refusal: why it does not take the document, in its own words.
        trouble: why it could not be asked.
    """

    name: str
    applied: bool
    refusal: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """A service that the settings are for, and its pods."""

    namespace: str
    name: str
    pods: tuple[PodAnswer, ...]

    @property
    def applied(self) -> int:
        return sum(pod.applied for pod in self.pods)


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a status is made of.

    Attributes:
        is_default: whether it is the config for what no other selects.
        write_failure: why a document could not be brought to the services.
    """

    judged: Judged
    is_default: bool
    targets: tuple[TargetAnswer, ...]
    conflicts: tuple[tuple[str, str], ...] = ()
    strangers: tuple[str, ...] = ()
    rollout: RolloutStatus | None = None
    live: Live | None = None
    write_failure: str = ""


@dataclass(frozen=True, slots=True)
class _Said:
    """A condition without the time."""

    status: bool
    reason: str
    message: str = ""


def build_status(findings: Findings, previous: Mapping[str, str], since: Mapping[str, str], now: str) -> Json:
    """The status as JSON. `previous` and `since` are the status and the time of each condition before this one."""
    accepted = _accepted(findings)
    propagating, applied = _propagating(findings), _applied(findings)
    ready = _ready(findings, accepted, applied)
    said = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.PROPAGATING: propagating,
        ConditionType.APPLIED: applied,
        ConditionType.READY: ready,
    }
    generation = findings.judged.config.meta.generation
    conditions = [_condition(kind, one, generation, previous, since, now) for kind, one in said.items()]
    targets = sorted(findings.targets, key=lambda one: (one.applied == len(one.pods), one.namespace, one.name))
    spec = findings.judged.spec
    status = PrismConfigStatus(
        observed_generation=generation,
        conditions=tuple(conditions),
        applied=f"{_count_applied(findings)}/{_count_pods(findings)}",
        cold_quota=None if spec is None else spec.scheduler.cold_lane.quota,
        targets_total=len(targets),
        targets=tuple(_target(target) for target in targets[:MAX_LISTED]),
        conflicts=tuple(ServiceConflict(service=s, config=c) for s, c in findings.conflicts[:MAX_LISTED]),
        live=findings.live,
        rollout=findings.rollout,
    )
    data: Json = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return data


def live_figures(window: Figures, seconds: float) -> Live | None:
    """The rounded figures of a window, which is given to the minute; None if nothing was asked of the targets."""
    if not window.prompt_tokens and not window.samples:
        return None
    return Live(
        window_seconds=max(60, round(seconds / 60) * 60),
        hit_rate=two_digits(window.hit_rate),
        p99_ttft_seconds=two_digits(window.quantile(0.99)),
    )


def _accepted(findings: Findings) -> _Said:
    spec = findings.judged.spec
    if spec is None:
        kept = "the last good settings stay in force until it is corrected"
        return _Said(False, "Invalid", f"{findings.judged.complaint}; {kept}")
    said = _remarks(findings, spec)
    return _Said(True, "Valid", f"accepted, but {'; '.join(said)}" if said else "the spec is understood")


def _remarks(findings: Findings, spec: PrismSpec) -> list[str]:
    """What the user should know of an accepted spec."""
    said = []
    unused = unused_fields(spec)
    if unused:
        chosen = f"order {spec.scheduler.order} with retention {spec.retention.policy}"
        said.append(f"{chosen} does not use {', '.join(unused)}")
    if findings.is_default and spec.selector is not None:
        said.append("spec.selector is ignored, since this config is for every service that no other selects")
    if findings.strangers:
        names = _names(findings.strangers)
        said.append(f"spec.selector also selects {names}, on which nothing is done: no runtime of PRISM serves there")
    return said


def _propagating(findings: Findings) -> _Said:
    waiting = _count_pods(findings) - _count_applied(findings)
    if not waiting:
        return _Said(False, "Done", "no pod is waited for")
    within = f"a default kubelet takes up to {KUBELET_SECONDS} s"
    return _Said(True, "WaitingForPods", f"{waiting} of {_count_pods(findings)} pods are waited for: {within}")


def _applied(findings: Findings) -> _Said:
    pods, applied = _count_pods(findings), _count_applied(findings)
    if findings.write_failure:
        return _Said(False, "NotWritten", findings.write_failure)
    if findings.judged.spec is None:
        return _Said(False, "Invalid", "the last good settings stay in force")
    trial = findings.rollout
    if trial is not None and trial.phase in RUNNING:
        return _Said(False, "Trying", _trying(trial))
    if trial is not None and trial.phase is Phase.WITHDRAWN:
        return _Said(False, str(trial.verdict), f"generation {trial.generation} was withdrawn: {trial.message}")
    if not findings.targets:
        return _Said(True, "NoTargets", "there is no service to bring the settings to")
    if applied < pods:
        return _why_not(findings)
    if not pods:
        return _Said(True, "NoPods", "no pod runs: each reads the settings when it starts")
    return _Said(True, "Applied", f"all {pods} pods obey generation {findings.judged.config.meta.generation}")


def _trying(trial: RolloutStatus) -> str:
    pods = [pod for target in trial.targets for pod in target.pods]
    doing = "is brought to" if trial.phase is Phase.STARTING else "is watched on"
    return f"generation {trial.generation} {doing} {_names(pods)}"


def _why_not(findings: Findings) -> _Said:
    """The first reason of a pod's that says what to do; else that it is waited for."""
    lacking = [pod for target in findings.targets for pod in target.pods if not pod.applied]
    refusing = [pod for pod in lacking if pod.refusal]
    silent = [pod for pod in lacking if pod.trouble]
    if refusing:
        return _Said(False, "Refused", f"pod {refusing[0].name} refuses the document: {refusing[0].refusal}")
    if silent:
        return _Said(False, "Unreachable", f"{silent[0].trouble} ({len(silent)} of {len(lacking)} that are waited for)")
    return _Said(False, "WaitingForPods", f"{len(lacking)} pods are waited for, {_names([p.name for p in lacking])}")


def _ready(findings: Findings, accepted: _Said, applied: _Said) -> _Said:
    if not accepted.status:
        return accepted
    if findings.conflicts:
        older = sorted({config for _, config in findings.conflicts})
        services = _names([service for service, _ in findings.conflicts])
        advice = "narrow a selector or delete one of them"
        return _Said(False, "Conflict", f"{services}: {_names(older)} is older and has them; {advice}")
    if not findings.targets and not findings.is_default:
        return _Said(False, "NoTargets", _nothing_selected(findings))
    return applied


def _nothing_selected(findings: Findings) -> str:
    if findings.judged.selector is None:
        return "spec.selector is absent, which selects nothing: name the labels of the InferenceServices"
    if findings.strangers:
        return f"{_names(findings.strangers)} run no runtime of PRISM: name one in spec.predictor.model.runtime"
    return "no InferenceService of this namespace carries the labels of spec.selector"


def _condition(
    kind: ConditionType,
    said: _Said,
    generation: int,
    previous: Mapping[str, str],
    since: Mapping[str, str],
    now: str,
) -> Condition:
    status = ConditionStatus.TRUE if said.status else ConditionStatus.FALSE
    unchanged = previous.get(kind) == status and since.get(kind)
    return Condition(
        type=kind,
        status=status,
        reason=said.reason,
        message=said.message[:MAX_MESSAGE],
        observed_generation=generation,
        last_transition_time=since[kind] if unchanged else now,
    )


def _target(target: TargetAnswer) -> Target:
    lacking = [pod for pod in target.pods if not pod.applied]
    said = next((pod.refusal or pod.trouble for pod in lacking if pod.refusal or pod.trouble), "")
    return Target(
        namespace=target.namespace,
        name=target.name,
        pods=len(target.pods),
        applied=target.applied,
        message=said[:MAX_MESSAGE],
    )


def _count_pods(findings: Findings) -> int:
    return sum(len(target.pods) for target in findings.targets)


def _count_applied(findings: Findings) -> int:
    return sum(target.applied for target in findings.targets)


def _names(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
