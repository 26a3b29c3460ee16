"""What the operator holds between looks: for each namespace who gets what, for each config what is in force.

All of it could be found again: selections from the caches, trials from statuses, settings in force from ConfigMaps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from prism.config.document import Settings
from prism.config.status import Live, RolloutStatus
from prism_operator.cluster import Cluster, default_key
from prism_operator.documents import DocumentTexts, Plan, document, plan, recorded
from prism_operator.names import document_key
from prism_operator.objects import Config, Json, Key, Pod
from prism_operator.rollout import Window
from prism_operator.select import Judged, Selection, judge


@dataclass(slots=True)
class Memory:
    """What is kept of one config; `uid` tells it from another of the same name.

    Attributes:
        in_force: the settings that all its pods got last, once `in_force_known`; None: those without this config.
        plan: what its services get, decided for `plan_generation`.
        trial, window: the change that is or was tried, and the counters at its window's begin.
        status: as written last, at Unix time `status_at`.
        live: the figures made last, at `live_at`.
    """

    uid: str
    in_force: Settings | None = None
    in_force_known: bool = False
    plan: Plan | None = None
    plan_generation: int = -1
    trial: RolloutStatus | None = None
    window: Window = field(default_factory=Window)
    status: Json = field(default_factory=dict)
    status_at: float = 0.0
    live: Live | None = None
    live_at: float = 0.0


class Knowledge:
    """The caches, and what was decided from them. Reads are thread-safe; a config's memory is written by its look."""

    def __init__(self, cluster: Cluster, release_namespace: str) -> None:
        self.cluster = cluster
        self.default = default_key(release_namespace)
        self.selections: dict[str, Selection] = {}
        self.failures: dict[str, str] = {}
        self._texts = DocumentTexts()
        self._lock = threading.Lock()
        self._memories: dict[Key, Memory] = {}

    # ---- configs ---------------------------------------------------------------------------------------------------

    def configs(self, namespace: str) -> list[Judged]:
        """The configs of a namespace, judged; without the default and those that are on their way out."""
        found = self.cluster.configs.of_namespace(namespace)
        return [self.judged(config) for config in found if not config.going and config.meta.key != self.default]

    def judged(self, config: Config) -> Judged:
        """What the config says; one that cannot be read keeps the services that have its settings."""
        judged = judge(config)
        return judged if judged.spec is not None else replace(judged, held=self._held(config))

    def memory(self, config: Config) -> Memory:
        """What is kept of the config; what can be found again after a start is."""
        with self._lock:
            memory = self._memories.get(config.meta.key)
            if memory is None or memory.uid != config.meta.uid:
                trial, live = _trial_of(config.status), _live_of(config.status)
                memory = Memory(config.meta.uid, trial=trial, status=dict(config.status), live=live)
                self._memories[config.meta.key] = memory
            return memory

    def forget(self, key: Key) -> None:
        with self._lock:
            self._memories.pop(key, None)

    def last_good(self, config: Config) -> Settings | None:
        """What was in force for the config's services last: as remembered, or as the ConfigMaps say."""
        memory = self.memory(config)
        if not memory.in_force_known:
            memory.in_force, memory.in_force_known = self._recorded(config), True
        return memory.in_force

    def plan_of(self, key: Key) -> Plan:
        """The plan that was made at the last look, or what must be assumed until the next."""
        config = self.cluster.configs.get(key)
        if config is None or config.going:
            return Plan(None)
        memory = self.memory(config)
        if memory.plan is not None and memory.plan_generation == config.meta.generation:
            return memory.plan
        return plan(self.judged(config), memory.trial, self.last_good(config))

    # ---- services --------------------------------------------------------------------------------------------------

    def targets(self, config: Key) -> tuple[Key, ...]:
        """The services that get the config's settings, in all namespaces for the default."""
        if config != self.default:
            selection = self.selections.get(config[0])
            return tuple((config[0], name) for name in selection.targets(config)) if selection is not None else ()
        selections = sorted(self.selections.items())
        return tuple((namespace, name) for namespace, one in selections for name in one.targets(None))

    def is_decided(self, config: Key) -> bool:
        """Whether it is known yet which services get the config's settings."""
        if config != self.default:
            return config[0] in self.selections
        return all(namespace in self.selections for namespace in self.cluster.services.namespaces())

    def documented(self, namespace: str) -> frozenset[str]:
        """The services of a namespace that have a document."""
        maps = self.cluster.maps.of_namespace(namespace)
        return frozenset(key.removesuffix(".yaml") for owned in maps for key in owned.content)

    def pods_of(self, targets: Iterable[Key]) -> dict[Key, list[Pod]]:
        """The predictor pods of these services, by name, without those that are on their way out."""
        by_namespace: dict[str, Mapping[str, list[Pod]]] = {}
        found: dict[Key, list[Pod]] = {}
        for namespace, name in targets:
            if namespace not in by_namespace:
                by_namespace[namespace] = self.cluster.predictor_pods(namespace)
            found[namespace, name] = sorted(by_namespace[namespace].get(name, []), key=lambda pod: pod.meta.name)
        return found

    def document(self, service: Key) -> tuple[Settings, Settings | None, tuple[str, ...]]:
        """What a service that runs PRISM gets: settings for all pods, and those that the pods behind them try."""
        selection = self.selections.get(service[0])
        owner = selection.services.get(service[1]) if selection is not None else None
        default = self.plan_of(self.default)
        if owner is None:
            return document(default, service, Settings.defaults())
        # A change of the default config is tried on the services that it is for, and not on these.
        return document(self.plan_of(owner), service, default.stable or Settings.defaults())

    def texts(self, namespace: str) -> dict[str, str]:
        """The documents of a namespace's services, by service.

        Raises:
            InvalidDocument: one would be larger than a document may be.
        """
        selection = self.selections.get(namespace)
        names = selection.services if selection is not None else ()
        return {name: self._texts.text(*self.document((namespace, name))) for name in names}

    def is_written(self, service: Key) -> bool:
        """Whether the service's document in the cluster is the one that is wanted."""
        text = self._texts.text(*self.document(service))
        key = document_key(service[1])
        return any(owned.content.get(key) == text for owned in self.cluster.maps.of_namespace(service[0]))

    # ---- what ConfigMaps record ------------------------------------------------------------------------------------

    def _held(self, config: Config) -> frozenset[str]:
        """The services whose document is this config's, whatever the config says now."""
        maps = self.cluster.maps.of_namespace(config.meta.namespace)
        documents = ((key, str(text)) for owned in maps for key, text in owned.content.items())
        return frozenset(
            key.removesuffix(".yaml")
            for key, text in documents
            if config.meta.uid in text and recorded(config, text) is not None
        )

    def _recorded(self, config: Config) -> Settings | None:
        is_default = config.meta.key == self.default
        maps = self.cluster.maps.all() if is_default else self.cluster.maps.of_namespace(config.meta.namespace)
        texts = (str(text) for owned in maps for text in owned.content.values() if config.meta.uid in str(text))
        return next((found for text in texts if (found := recorded(config, text)) is not None), None)


def _trial_of(status: Json) -> RolloutStatus | None:
    """The trial that a status tells of; None if of none, or of one that this version does not understand."""
    try:
        return RolloutStatus.model_validate(status.get("rollout"), by_alias=True, by_name=False)
    except ValidationError:
        return None


def _live_of(status: Json) -> Live | None:
    try:
        return Live.model_validate(status.get("live"), by_alias=True, by_name=False)
    except ValidationError:
        return None
