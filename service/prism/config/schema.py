"""What can be set: one model tree, from which the CRD, the document, the predictor and the reference page come.

Documents spell fields in camelCase, Python in snake_case. Values are taken as they are: no text is read as a number,
no number as a truth value, and 0 and false are values. NaN and infinity are refused everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

# Larger weights would not mean more, and their products with any count of requests stay exact below this.
MAX_WEIGHT = 1_000_000
MAX_COUNT = 2**31 - 1
MAX_SECONDS = 7 * 24 * 3600

# Kubernetes' own bounds on a label's key (a prefix of 253 and a name of 63) and value; how many one selector may hold
# keeps a PrismConfig small and lets the API server check it.
MAX_LABEL_KEY = 317
MAX_LABEL_VALUE = 63
MAX_LABELS = 32
MAX_REQUIREMENTS = 16


class ContractModel(BaseModel):
    """A frozen part of the contract: unknown fields refused, camelCase outside, snake_case inside."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def whole(value: object) -> object:
    """Templates print 1048576 as 1.048576e+06: a whole number stays one, however it is written."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(whole)]


class Order(StrEnum):
    """Which waiting request is admitted next, and how its documents are ordered."""

    PRISM = "Prism"
    PAPER = "Paper"
    FCFS = "FCFS"
    LPM = "LPM"


class Reorder(StrEnum):
    """Whose documents may change places."""

    NEVER = "Never"
    DECLARED = "Declared"
    DOCUMENTS = "Documents"


class RetentionPolicy(StrEnum):
    """Which cached blocks are given up first."""

    DEMAND_AWARE = "DemandAware"
    LRU = "LRU"


class LabelOperator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


LabelValue = Annotated[str, Field(max_length=MAX_LABEL_VALUE)]


class LabelRequirement(ContractModel):
    """One condition on a label."""

    key: str = Field(min_length=1, max_length=MAX_LABEL_KEY)
    """The label's key."""
    operator: LabelOperator = Field(strict=False)
    """How the label is compared: `In` and `NotIn` with `values`, `Exists` and `DoesNotExist` without."""
    values: tuple[LabelValue, ...] = Field(default=(), strict=False, max_length=MAX_LABELS)
    """The values that `In` and `NotIn` compare with."""

    @model_validator(mode="after")
    def _values_fit_operator(self) -> Self:
        compares = self.operator in (LabelOperator.IN, LabelOperator.NOT_IN)
        if compares and not self.values:
            raise ValueError(f"needs values, since its operator is {self.operator}")
        if self.values and not compares:
            raise ValueError(f"takes no values, since its operator is {self.operator}: remove them")
        return self


class Selector(ContractModel):
    """Which InferenceServices of the same namespace the settings are for; Kubernetes' own label selector."""

    match_labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=MAX_LABELS)
    """Labels that a service must carry, each with exactly this value."""
    match_expressions: tuple[LabelRequirement, ...] = Field(default=(), strict=False, max_length=MAX_REQUIREMENTS)
    """Further conditions; all must hold."""


class Weights(ContractModel):
    """What one use of a segment counts, by how near it is. Strictly ordered: active > predicted > queued >= 0."""

    active: float = Field(default=100.0, gt=0, le=MAX_WEIGHT)
    """What a request counts that was admitted and has not finished."""
    predicted: float = Field(default=10.0, gt=0, le=MAX_WEIGHT)
    """What a use counts that is expected soon, from the current candidates and from recent arrivals."""
    queued: float = Field(default=1.0, ge=0, le=MAX_WEIGHT)
    """What a waiting request counts."""

    @model_validator(mode="after")
    def _strictly_ordered(self) -> Self:
        pairs = (("active", "predicted"), ("predicted", "queued"))
        for above, below in pairs:
            if not getattr(self, above) > getattr(self, below):
                raise ValueError(
                    "must be strictly ordered, active > predicted > queued: "
                    f"raise {above} ({self._shown(above)}) or lower {below} ({self._shown(below)})"
                )
        return self

    def _shown(self, name: str) -> str:
        by_default = "" if name in self.model_fields_set else ", the default"
        return f"{getattr(self, name):g}{by_default}"


class ColdLane(ContractModel):
    """The share of admissions kept for the oldest waiting request, whatever its score."""

    quota: float = Field(default=0.1, ge=0, le=1)
    """Share of admissions. With q > 0 the oldest request of its priority is overtaken by at most ceil(1/q) - 1
    admissions in a row; 0 gives that promise up, 1 is first come first served."""
    max_wait_seconds: float = Field(default=10.0, gt=0)
    """Seconds from the first admission that passes a request until it is overdue and nothing younger is admitted
    before it."""


class Fairness(ContractModel):
    """Whether tenants share alike. A tenant is one cache salt."""

    enabled: bool = False
    """Give every tenant with waiting requests an equal share of the hot lane, counted in prompt tokens to compute. The
    cold lane goes on as before, so raise `coldLane.maxWaitSeconds` above the wait that one tenant's flood may have."""


class Buckets(ContractModel):
    """How the order `Paper` groups waiting requests. Used by `Paper` only."""

    signature_length: Whole = Field(default=2, ge=1, le=16)
    """How many leading high-priority segments two requests must share to stand in one bucket."""
    min_utility: float = Field(default=2.0, ge=0)
    """Utility from which a segment counts as high-priority. By the default weights a request's own arrival is worth 11,
    so the default lets every segment count; 20 asks for a second request."""


class Window(ContractModel):
    """What prediction looks back on."""

    arrivals: Whole = Field(default=1024, ge=64, le=8192)
    """How many of the latest arrivals predict the next uses of a segment."""


class LongestPrefixMatch(ContractModel):
    """How the order `LPM` bounds its own work. Used by `LPM` only."""

    fall_back_at: Whole = Field(default=128, ge=0, le=MAX_COUNT)
    """Number of waiting requests from which the queue is served first come first served."""


class Scheduler(ContractModel):
    """Which waiting request is admitted next."""

    order: Order = Field(default=Order.PRISM, strict=False)
    """`Prism` is what measures best, `Paper` the published scheme, `FCFS` stock vLLM's first come first served,
    `LPM` longest cached prefix first."""
    weights: Weights = Weights()
    """What each use of a segment counts. Used by `Prism`, by `Paper`, and by the retention `DemandAware`."""
    lexicographic: bool = False
    """Compare utilities class by class (active, then predicted, then queued) and not by their weighted sum, so that
    no count outweighs a higher class."""
    cold_lane: ColdLane = ColdLane()
    """The guard against starvation. Used by `Prism` and `Paper`."""
    reorder: Reorder = Field(default=Reorder.DECLARED, strict=False)
    """Whose documents may change places: nobody's (`Never`), those of requests that say `reorder: true`
    (`Declared`), or the `documents` entries of every request without earlier turns that does not say `reorder: false`
    (`Documents`).
    Used by `Prism` and `Paper`."""
    fairness: Fairness = Fairness()
    """Equal shares for tenants. Used by `Prism` and `Paper`."""
    buckets: Buckets = Buckets()
    """How the order `Paper` groups waiting requests."""
    window: Window = Window()
    """What prediction looks back on. Used by `Prism`, by `Paper`, and by the retention `DemandAware`."""
    longest_prefix_match: LongestPrefixMatch = LongestPrefixMatch()
    """How the order `LPM` bounds its own work."""


class Retention(ContractModel):
    """Which cached KV blocks are given up first."""

    policy: RetentionPolicy = Field(default=RetentionPolicy.DEMAND_AWARE, strict=False)
    """`DemandAware` keeps what is wanted soon, `LRU` is stock vLLM's least recently used."""


class Limits(ContractModel):
    """How much may wait. A request beyond a limit is answered 429 with Retry-After."""

    max_waiting_requests: Whole = Field(default=2048, ge=0, le=MAX_COUNT)
    """Bound on waiting requests; 0: no bound."""
    max_waiting_prompt_tokens: Whole = Field(default=0, ge=0, le=MAX_COUNT)
    """Bound on the prompt tokens of all waiting requests together; 0: no bound."""


class Tracing(ContractModel):
    """How much is traced."""

    sampling_ratio: float | None = Field(default=None, ge=0, le=1)
    """Share of requests that leave a trace. Set, it wins over the standard OTEL sampler variables; unset in both, it
    is 1. A caller's sampled flag always decides."""


_PERCENTAGE = re.compile(r"(100|[1-9][0-9]?)%")


def _canary(value: object) -> object:
    """Checked before the union, so that a wrong value gets one sentence and not one for each alternative."""
    value = whole(value)
    counts = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT
    if counts or (isinstance(value, str) and _PERCENTAGE.fullmatch(value)):
        return value
    raise ValueError('must be a number of pods from 1, or a percentage from "1%" to "100%"')


# Kubernetes' int-or-string: its schema language has no other way to say so.
Canary = Annotated[
    int | str,
    BeforeValidator(_canary),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        }
    ),
]


class Rollout(ContractModel):
    """How a change is tried on some pods before all get it. Acted on by the operator."""

    canary: Canary = 1
    """How many pods try a change first: a number, or a percentage of each service's pods such as "10%"."""
    watch_seconds: float = Field(default=300.0, gt=0, le=MAX_SECONDS)
    """Seconds for which the tried pods are compared with the others."""
    min_samples: Whole = Field(default=300, ge=1, le=MAX_COUNT)
    """Requests that each side must have served before they are compared."""
    max_p99_regression: float = Field(default=1.10, gt=0)
    """Largest ratio of P99 TTFT, tried pods over the others, with which the change goes on."""
    max_error_rate_increase: float = Field(default=0.01, ge=0, le=1)
    """Largest increase of the share of failed requests with which the change goes on."""


class PrismSpec(ContractModel):
    """All that can be set. Every field has a default that measures well; an empty spec is a good one."""

    selector: Selector | None = None
    """Which InferenceServices of the same namespace the settings are for. Read by the operator only."""
    scheduler: Scheduler = Scheduler()
    """Which waiting request is admitted next."""
    retention: Retention = Retention()
    """Which cached KV blocks are given up first."""
    limits: Limits = Limits()
    """How much may wait before requests are refused."""
    tracing: Tracing = Tracing()
    """How much is traced."""
    rollout: Rollout | None = None
    """How a change is tried on some pods before all get it. Absent: all pods at once."""


def _groups(spec: PrismSpec) -> bool:
    return spec.scheduler.order is Order.PAPER


def _matches(spec: PrismSpec) -> bool:
    return spec.scheduler.order is Order.LPM


def _plans(spec: PrismSpec) -> bool:
    return spec.scheduler.order in (Order.PRISM, Order.PAPER)


def _values(spec: PrismSpec) -> bool:
    return _plans(spec) or spec.retention.policy is RetentionPolicy.DEMAND_AWARE


# Which policies use a field; a field that is not named here is used whatever the policies.
_USED_WHEN: dict[str, Callable[[PrismSpec], bool]] = {
    "scheduler.weights": _values,
    "scheduler.lexicographic": _values,
    "scheduler.window": _values,
    "scheduler.coldLane": _plans,
    "scheduler.reorder": lambda spec: _plans(spec) or spec.scheduler.reorder is Reorder.NEVER,
    "scheduler.fairness": lambda spec: _plans(spec) or not spec.scheduler.fairness.enabled,
    "scheduler.buckets": _groups,
    "scheduler.longestPrefixMatch": _matches,
}


def unused_fields(spec: PrismSpec) -> list[str]:
    """Dotted camelCase paths of the fields that were set explicitly and that the chosen policies do not use.

    A refusal to do what a policy does not do anyway (`reorder: Never`, `fairness.enabled: false`) counts as used.
    """
    idle = [path for path, used in _USED_WHEN.items() if not used(spec)]
    return [path for path in _set_fields(spec) if any(path == group or path.startswith(group + ".") for group in idle)]


def _set_fields(model: ContractModel, prefix: str = "") -> Iterator[str]:
    """Dotted paths of the leaves that were given, in the order of the schema."""
    for name in type(model).model_fields:
        if name not in model.model_fields_set:
            continue
        value, path = getattr(model, name), prefix + to_camel(name)
        if isinstance(value, ContractModel):
            yield from _set_fields(value, path + ".")
        else:
            yield path


def part_of(annotation: Any) -> type[ContractModel] | None:
    """The part of the contract that a field of this annotation holds, alone, optional or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, ContractModel):
        return annotation
    return next((part for argument in get_args(annotation) if (part := part_of(argument))), None)
