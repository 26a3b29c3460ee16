"""The settings that EngineCore says it obeys; the serving process uses nothing else."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from prism.config.schema import PrismSpec, Reorder
from prism.engine.wire import SettingsAdopted, SettingsRefused
from prism.telemetry.log import event

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Announced:
    """Settings in force in an engine; `spec` is validated."""

    generation: int = 0
    digest: str = ""
    source: str = "defaults"
    uid: str = ""
    role: str = "defaults"
    spec: PrismSpec = field(default_factory=PrismSpec)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that an engine did not take, and that nothing good has replaced since."""

    reason: str
    message: str
    digest: str
    at: float


class EngineSettings:
    """What each engine announced last.

    With several engines the settings in force are those that all of them obey; while they differ, the ones that all
    obeyed before.
    """

    def __init__(self) -> None:
        self._engines: dict[int, Announced] = {}
        self._refusals: dict[int, Refusal] = {}
        self._in_force = Announced()

    @property
    def in_force(self) -> Announced:
        return self._in_force

    @property
    def last_refusal(self) -> Refusal | None:
        return max(self._refusals.values(), key=lambda refusal: refusal.at, default=None)

    def rendering(self) -> tuple[Reorder, int]:
        """What rendering obeys: which requests may be reordered, and the settings generation that says so."""
        return self._in_force.spec.scheduler.reorder, self._in_force.generation

    def adopted(self, engine: int, fact: SettingsAdopted) -> None:
        try:
            spec = PrismSpec.model_validate(fact.spec)
        except ValidationError as error:
            # Only two versions of PRISM in one pod could get here.
            _logger.error("Engine %d announced settings that this process does not understand: %s", engine, error)
            return
        self._engines[engine] = Announced(fact.generation, fact.digest, fact.source, fact.uid, fact.role, spec)
        self._refusals.pop(engine, None)
        if len({announced.digest for announced in self._engines.values()}) == 1:
            self._adopt(self._engines[engine])

    def refused(self, engine: int, fact: SettingsRefused) -> None:
        self._refusals[engine] = Refusal(fact.reason, fact.message, fact.digest, fact.at)
        words = event("settings_refused", engine=engine, reason=fact.reason, why=fact.message, digest=fact.digest[:12])
        _logger.warning("A settings document was refused; what was in force stays.", extra=words)

    def _adopt(self, announced: Announced) -> None:
        if announced.digest != self._in_force.digest or announced.generation != self._in_force.generation:
            words = event(
                "settings_adopted",
                generation=announced.generation,
                source=announced.source,
                role=announced.role,
                digest=announced.digest[:12],
            )
            _logger.info("Settings are in force.", extra=words)
        self._in_force = announced

    def as_json(self) -> dict[str, Any]:
        """The answer of `GET /prism/v1/settings`."""
        refusal = self.last_refusal
        return {
            **_plain(self._in_force),
            "spec": self._in_force.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
            "engines": [{"engine": rank, **_plain(self._engines[rank])} for rank in sorted(self._engines)],
            "last_refusal": None
            if refusal is None
            else {"reason": refusal.reason, "message": refusal.message, "digest": refusal.digest},
        }


def _plain(announced: Announced) -> dict[str, Any]:
    return {
        "generation": announced.generation,
        "digest": announced.digest,
        "source": announced.source,
        "uid": announced.uid,
        "role": announced.role,
    }
