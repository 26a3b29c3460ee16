"""Which settings are in force for a PrismConfig's services, and the documents that say so.

A document carries what the predictor acts on: the operator's own parts of a spec, `selector` and `rollout`, stay out of
it, so that moving a selector is no change of settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from prism.config.document import Block, Settings, parse_document, to_document
from prism.config.schema import PrismSpec
from prism.config.status import Phase, RolloutStatus, StableSettings
from prism.errors import InvalidDocument
from prism_operator.objects import Config, Json, Key
from prism_operator.rollout import RUNNING, tried_pods
from prism_operator.select import Judged

OPERATORS_OWN: Final = frozenset({"selector", "rollout"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a config's services get.

    Attributes:
        stable: for all pods; None: what they would get without this config.
        candidate: what is tried.
        pods: the pods that try it, by service.
    """

    stable: Settings | None
    candidate: Settings | None = None
    pods: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)


def settings_of(config: Config, spec: PrismSpec) -> Settings:
    """A config's current settings, as documents carry them."""
    return Settings(_acted_on(spec), config.meta.generation, config.source, config.meta.uid)


def settled(settings: Settings) -> StableSettings:
    """Settings as a status keeps them."""
    spec = settings.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return StableSettings(generation=settings.generation, spec=spec)


def unsettled(config: Config, stable: StableSettings | None) -> Settings | None:
    """Settings that a status has kept; None if it kept none, or none that this version understands."""
    if stable is None:
        return None
    try:
        spec = PrismSpec.model_validate(stable.spec, by_alias=True, by_name=False)
    except ValueError:
        return None
    return Settings(_acted_on(spec), stable.generation, config.source, config.meta.uid)


def recorded(config: Config, document: str) -> Settings | None:
    """The settings of this very config that a document has in force for all, whoever wrote it; None without."""
    try:
        stable = parse_document(document.encode()).stable
    except InvalidDocument:
        return None
    if stable.source != config.source or stable.uid != config.meta.uid:
        return None
    return _settings(stable)


def plan(judged: Judged, state: RolloutStatus | None, last_good: Settings | None) -> Plan:
    """What is to be in force. `last_good` is what was in force before the current spec.

    A spec that cannot be read leaves the last good settings; one that is to be tried first leaves them too until its
    trial has begun, and after it was withdrawn.
    """
    config = judged.config
    kept = (unsettled(config, state.stable) if state is not None else None) or last_good
    if judged.spec is None:
        return Plan(kept)
    current = settings_of(config, judged.spec)
    if judged.spec.rollout is None or same_effect(current, last_good):
        return Plan(current)
    if state is None or state.generation != config.meta.generation:
        return Plan(kept)
    if state.phase in RUNNING:
        return Plan(kept, current, tried_pods(state))
    return Plan(current if state.phase is Phase.PROMOTED else kept)


def same_effect(one: Settings, other: Settings | None) -> bool:
    """Whether a predictor would do the same under both."""
    return other is not None and one.spec == other.spec


def document(plan: Plan, service: Key, otherwise: Settings) -> tuple[Settings, Settings | None, tuple[str, ...]]:
    """The parts of one service's document; `otherwise` is what it would get without the config."""
    pods = plan.pods.get(service, ())
    candidate = plan.candidate if pods else None
    return plan.stable or otherwise, candidate, pods


class DocumentTexts:
    """Documents as text. Most services of a config share one, so each is written once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str, tuple[str, ...]], str] = {}

    def text(self, stable: Settings, candidate: Settings | None, pods: tuple[str, ...]) -> str:
        """The document.

        Raises:
            InvalidDocument: it would be larger than a document may be.
        """
        key = (stable.digest, candidate.digest if candidate else "", pods)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) > _MOST_TEXTS:
                self._texts.clear()
            text = self._texts[key] = to_document(stable, candidate, pods)
        return text


_MOST_TEXTS = 4096


def _acted_on(spec: PrismSpec) -> PrismSpec:
    if not spec.model_fields_set & OPERATORS_OWN:
        return spec
    given: Json = spec.model_dump(by_alias=True, exclude_unset=True, exclude=set(OPERATORS_OWN))
    return PrismSpec.model_validate(given, by_alias=True, by_name=False)


def _settings(block: Block) -> Settings:
    return Settings(_acted_on(block.spec), block.generation, block.source, block.uid)
