"""Brings to a PrismConfig's status what became of it: written when it says something new, and only then."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prism.config.document import Settings
from prism.config.status import Live
from prism_operator.api import CONFIGS, Api, now_rfc3339
from prism_operator.errors import Missing
from prism_operator.events import WARNINGS, Events
from prism_operator.knowledge import Knowledge, Memory
from prism_operator.objects import Config, Json, Key, Pod
from prism_operator.predictors import LIVE_SECONDS, Predictors
from prism_operator.select import Judged
from prism_operator.status import Findings, PodAnswer, TargetAnswer, build_status, live_figures

_logger = logging.getLogger(__name__)

LIVE_EVERY_SECONDS = 60.0
"""How often the live figures may change."""

_ECHO_SECONDS = 10.0
"""How long a status that was written may take to be heard of."""


class Reporter:
    """Writes statuses, and Events for what is new in them."""

    def __init__(
        self, api: Api, knowledge: Knowledge, predictors: Predictors, events: Events, clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._knowledge = knowledge
        self._predictors = predictors
        self._events = events
        self._clock = clock

    def report(self, judged: Judged, memory: Memory, pods: dict[Key, list[Pod]], goal: Settings | None) -> bool:
        """Says what is; `goal` are the settings that the pods of the targets are counted by.

        Returns False if it is too early to say, since pods are still to be asked.
        """
        config, previous = judged.config, memory.status or judged.config.status
        answers, unheard = self._answers(pods, goal)
        known = previous.get("observedGeneration") == config.meta.generation and not _trial_moved(memory, previous)
        if unheard and known:
            # Better the old word for a moment than a wrong one: after a start nothing has been asked yet.
            return False
        findings = self._findings(judged, memory, answers)
        status = build_status(findings, *_conditions(previous), now_rfc3339(self._clock()))
        echoing = self._clock() - memory.status_at < _ECHO_SECONDS
        if status == previous and (echoing or status == config.status):
            return True
        self._write(config, status)
        memory.status, memory.status_at = status, self._clock()
        self._tell(config, previous, status)
        return True

    def _answers(self, pods: dict[Key, list[Pod]], goal: Settings | None) -> tuple[tuple[TargetAnswer, ...], bool]:
        """What the pods of the targets say, and whether one with an address has not been asked yet."""
        answers, unheard = [], False
        for (namespace, name), of_target in pods.items():
            said = tuple(self._answer(pod, goal) for pod in of_target)
            answers.append(TargetAnswer(namespace, name, said))
            unheard = unheard or any(
                pod.address and not self._predictors.heard(pod.meta.key).asked for pod in of_target
            )
        return tuple(answers), unheard

    def _answer(self, pod: Pod, goal: Settings | None) -> PodAnswer:
        heard = self._predictors.heard(pod.meta.key)
        applied = goal is not None and bool(pod.address) and heard.digest == goal.digest
        # A pod that is still starting cannot answer, and needs nobody's help.
        return PodAnswer(pod.meta.name, applied, heard.refusal, heard.trouble if pod.ready else "")

    def _findings(self, judged: Judged, memory: Memory, answers: tuple[TargetAnswer, ...]) -> Findings:
        knowledge, key = self._knowledge, judged.config.meta.key
        selection = knowledge.selections.get(key[0]) if key != knowledge.default else None
        namespaces = sorted({target.namespace for target in answers} | {key[0]})
        failures = (knowledge.failures[namespace] for namespace in namespaces if namespace in knowledge.failures)
        return Findings(
            judged=judged,
            is_default=key == knowledge.default,
            targets=answers,
            conflicts=selection.conflicts.get(key, ()) if selection is not None else (),
            strangers=selection.strangers.get(key, ()) if selection is not None else (),
            rollout=memory.trial,
            live=self._live(memory, answers),
            write_failure=next(failures, ""),
        )

    def _live(self, memory: Memory, answers: tuple[TargetAnswer, ...]) -> Live | None:
        """The live figures, made anew once a minute at most; those of the status until a minute was watched."""
        if self._clock() - memory.live_at < LIVE_EVERY_SECONDS:
            return memory.live
        pods = [(target.namespace, pod.name) for target in answers for pod in target.pods]
        window, seconds = self._predictors.window(pods)
        if seconds >= LIVE_EVERY_SECONDS * 0.8 or not pods:
            memory.live = live_figures(window, min(seconds, LIVE_SECONDS))
            memory.live_at = self._clock()
        return memory.live

    def _write(self, config: Config, status: Json) -> None:
        body = {
            "apiVersion": CONFIGS.api_version,
            "kind": CONFIGS.kind,
            "metadata": {"namespace": config.meta.namespace, "name": config.meta.name},
            "status": status,
        }
        try:
            self._api.apply(CONFIGS, body, "status")
        except Missing:
            _logger.debug("%s was deleted meanwhile", config.source)

    def _tell(self, config: Config, previous: Json, status: Json) -> None:
        """Events for what the Ready condition says now and did not say before, and for a trial's next phase."""
        before, after = _ready(previous), _ready(status)
        if before[:3] != after[:3] and after[1] != "WaitingForPods":
            self._events.tell(config, after[1], after[3])
        trial, trial_before = status.get("rollout") or {}, previous.get("rollout") or {}
        if trial and trial.get("phase") != trial_before.get("phase") and trial.get("verdict") not in WARNINGS:
            self._events.tell(config, f"Trial{trial['phase']}", trial.get("message", ""))


def _trial_moved(memory: Memory, previous: Json) -> bool:
    """Whether the trial's state is not yet the one that stands in the status."""
    trial = memory.trial
    shown = None if trial is None else trial.model_dump(mode="json", by_alias=True, exclude_none=True)
    return bool(shown != previous.get("rollout"))


def _conditions(status: Json) -> tuple[dict[str, str], dict[str, str]]:
    """Status and time of each condition, by type."""
    found = [one for one in status.get("conditions") or () if isinstance(one, dict)]
    states = {str(one.get("type")): str(one.get("status")) for one in found}
    return states, {str(one.get("type")): str(one.get("lastTransitionTime", "")) for one in found}


def _ready(status: Json) -> tuple[str, str, str, str]:
    """The Ready condition's status, reason, generation and message."""
    for one in status.get("conditions") or ():
        if isinstance(one, dict) and one.get("type") == "Ready":
            said = (str(one.get(key, "")) for key in ("status", "reason", "observedGeneration", "message"))
            return next(said), next(said), next(said), next(said)
    return "", "", "", ""
