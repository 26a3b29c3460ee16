"""What a PrismConfig's `status` holds: written by the operator, read by people, dashboards and `kubectl wait`."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from prism.config.schema import ContractModel

MAX_LISTED = 64
"""How many targets, conflicts and pods a status names; the counts beside them are of all."""

MAX_TRIED_SERVICES = 256
MAX_TRIED_PODS = 100
"""How much one trial may hold: its state stands in the status, and the names of the pods in a document."""

MAX_MESSAGE = 1024
MAX_NAME = 253


class ConditionStatus(StrEnum):
    """Whether a condition holds."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """What is said of a PrismConfig."""

    ACCEPTED = "Accepted"
    PROPAGATING = "Propagating"
    APPLIED = "Applied"
    READY = "Ready"


class Condition(ContractModel):
    """One statement about the settings, in Kubernetes' own form."""

    type: ConditionType = Field(strict=False)
    """`Accepted`: the spec is one that this version understands. `Propagating`: pods are still to get it. `Applied`:
    every pod of every target says that it obeys it. `Ready`: all is as the spec says, or Reason says why not."""
    status: ConditionStatus = Field(strict=False)
    """Whether it holds."""
    reason: str = Field(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9]*$")
    """One word for machines."""
    message: str = Field(default="", max_length=MAX_MESSAGE)
    """A sentence that says what to do, if anything."""
    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this was said of."""
    last_transition_time: str = Field(default="", max_length=32, json_schema_extra={"format": "date-time"})
    """When `status` changed last."""


class Target(ContractModel):
    """An InferenceService that the settings are for."""

    namespace: str = Field(max_length=MAX_NAME)
    """Its namespace."""
    name: str = Field(max_length=MAX_NAME)
    """Its name."""
    pods: int = Field(ge=0)
    """Its predictor pods that are not on their way out."""
    applied: int = Field(ge=0)
    """Those of them that say that they obey these settings."""
    message: str = Field(default="", max_length=MAX_MESSAGE)
    """Why the others do not, as far as it is known."""


class ServiceConflict(ContractModel):
    """A selected InferenceService that an older PrismConfig has."""

    service: str = Field(max_length=MAX_NAME)
    """Its name."""
    config: str = Field(max_length=MAX_NAME)
    """The PrismConfig, of the same namespace, whose settings are in force there."""


class Live(ContractModel):
    """How the targets do, over all of their pods, rounded to two digits. Absent figures: no requests in the window."""

    window_seconds: int = Field(ge=0)
    """The time that the figures cover, up to the last time the pods were asked."""
    hit_rate: float | None = Field(default=None, ge=0, le=1)
    """Share of prompt tokens whose KV was found in the cache."""
    p99_ttft_seconds: float | None = Field(default=None, ge=0)
    """99th percentile of the time to first token, interpolated within a histogram's bucket."""


class Phase(StrEnum):
    """How far a change has got that is tried on some pods first."""

    STARTING = "Starting"
    WATCHING = "Watching"
    PROMOTED = "Promoted"
    WITHDRAWN = "Withdrawn"


class Verdict(StrEnum):
    """What the comparison of tried pods with the others has shown."""

    PASSED = "Passed"
    REGRESSED = "Regressed"
    INCONCLUSIVE = "Inconclusive"


class GroupFigures(ContractModel):
    """One side of the comparison, over the window."""

    requests: int = Field(default=0, ge=0)
    """Requests that ended, but for those that their clients gave up and those that were refused."""
    p99_ttft_seconds: float | None = Field(default=None, ge=0)
    """99th percentile of the time to first token; absent without requests."""
    error_rate: float | None = Field(default=None, ge=0, le=1)
    """Share of failed requests; absent without requests."""


class RolloutTarget(ContractModel):
    """One service in the trial."""

    namespace: str = Field(max_length=MAX_NAME)
    """Its namespace."""
    name: str = Field(max_length=MAX_NAME)
    """Its name."""
    pods: tuple[str, ...] = Field(default=(), strict=False, max_length=MAX_TRIED_PODS)
    """The pods that try the change."""
    verdict: Verdict | None = Field(default=None, strict=False)
    """What the comparison has shown, once it has."""
    canary: GroupFigures | None = None
    """Figures of the pods that try the change."""
    stable: GroupFigures | None = None
    """Figures of the others, over the same time."""
    message: str = Field(default="", max_length=MAX_MESSAGE)
    """The verdict as a sentence."""


class StableSettings(ContractModel):
    """The settings that all pods run while a change is tried, and that stay if it is withdrawn."""

    generation: int = Field(ge=0)
    """The generation of the spec that they were."""
    spec: dict[str, Any] = Field(
        default_factory=dict, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "properties": {}}
    )
    """That spec, without selector and rollout."""


class RolloutStatus(ContractModel):
    """A change that was or is tried on some pods before all get it."""

    generation: int = Field(ge=0)
    """The generation of the spec that is tried. A withdrawn one is not tried again until the spec changes."""
    phase: Phase = Field(strict=False)
    """How far it is: `Starting` until every tried pod obeys it, `Watching` while both sides are compared, then
    `Promoted` or `Withdrawn`."""
    verdict: Verdict | None = Field(default=None, strict=False)
    """Why it ended."""
    message: str = Field(default="", max_length=MAX_MESSAGE)
    """The verdict as a sentence, with both figures."""
    since: str = Field(default="", max_length=32, json_schema_extra={"format": "date-time"})
    """When the phase began."""
    restarts: int = Field(default=0, ge=0)
    """How often the window began again because a tried pod was lost."""
    targets: tuple[RolloutTarget, ...] = Field(default=(), strict=False, max_length=MAX_TRIED_SERVICES)
    """The services in the trial."""
    stable: StableSettings | None = None
    """What the others run, and what stays if the change is withdrawn. Absent: what the services would have without
    this PrismConfig."""


class PrismConfigStatus(ContractModel):
    """What became of the settings."""

    observed_generation: int = Field(default=0, ge=0)
    """The generation of the spec that this status is about."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        strict=False,
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """What is to be said, most important last: Accepted, Propagating, Applied, Ready."""
    applied: str = Field(default="", max_length=32)
    """Pods that obey the settings, of all pods of all targets: `3/4`."""
    cold_quota: float | None = Field(default=None, ge=0, le=1)
    """The cold lane's quota of the spec, also where it is left at its default."""
    targets_total: int = Field(default=0, ge=0)
    """How many InferenceServices the settings are for."""
    targets: tuple[Target, ...] = Field(default=(), strict=False, max_length=MAX_LISTED)
    """The InferenceServices, those first that lack something; at most 64 of them."""
    conflicts: tuple[ServiceConflict, ...] = Field(default=(), strict=False, max_length=MAX_LISTED)
    """Selected InferenceServices that an older PrismConfig has; at most 64 of them."""
    live: Live | None = None
    """How the targets do."""
    rollout: RolloutStatus | None = None
    """The last change that was tried on some pods first."""
