"""The loop: looks at a namespace or at a PrismConfig as it is now, and does what is lacking.

Two kinds of work. A *namespace* is looked at to decide who gets what and to write the ConfigMaps, the NetworkPolicy and
the budgets. A *config* is looked at to carry its trial on, to compare what its pods answered with what they should
obey, and to write its status. Both start from what is known and from nothing that an event said, so that a lost,
doubled or late event changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from prism.config.document import Settings
from prism.config.status import RolloutStatus
from prism.errors import InvalidDocument
from prism_operator import api as kinds
from prism_operator.api import Api
from prism_operator.arguments import Arguments
from prism_operator.cache import Cache
from prism_operator.cluster import Cluster
from prism_operator.documents import Plan, plan, settings_of
from prism_operator.errors import ApiError, Missing, Refused, Terminating
from prism_operator.events import Events
from prism_operator.knowledge import Knowledge
from prism_operator.manifests import MANAGED, admin_policy, disruption_budgets, settings_maps
from prism_operator.metrics import QUEUE_DEPTH, RECONCILE_FAILURES, RECONCILE_SECONDS, ROLLOUTS
from prism_operator.names import NUDGE_ANNOTATION
from prism_operator.objects import Config, Json, Key, Owned, Pod, Runtime, Service
from prism_operator.predictors import PodKey, Predictors, Wanted
from prism_operator.report import LIVE_EVERY_SECONDS, Reporter
from prism_operator.rollout import RUNNING, PodView, TargetView
from prism_operator.select import Judged, Selection, select
from prism_operator.tracing import RECONCILE, Tracing
from prism_operator.trial import carry_on
from prism_operator.workqueue import WorkQueue
from prism_operator.writer import Writer

_logger = logging.getLogger(__name__)

Work = tuple[Literal["namespace", "config"], str, str]

TRIAL_SECONDS = 2.0
"""How often a running trial is looked at."""

_CALM_SECONDS = 0.05
_UNHEARD_SECONDS = 0.5


class Reconciler:
    """Looks at what changed and does what is lacking. `work` may run in several threads."""

    def __init__(
        self, api: Api, arguments: Arguments, tracing: Tracing, clock: Callable[[], float] = time.time
    ) -> None:
        self.queue: WorkQueue[Work] = WorkQueue()
        self.cluster = Cluster(
            configs=Cache(self._config_heard),
            services=Cache(self._in_namespace_heard),
            runtimes=Cache(self._runtime_heard),
            cluster_runtimes=Cache(self._runtime_heard),
            pods=Cache(self._pod_heard),
            maps=Cache(self._in_namespace_heard),
            policies=Cache(self._in_namespace_heard),
            budgets=Cache(self._in_namespace_heard),
        )
        self.predictors = Predictors(arguments.admin_port, arguments.ask_seconds, self._add_config)
        self._api = api
        self._arguments = arguments
        self._tracing = tracing
        self._clock = clock
        self._known = Knowledge(self.cluster, arguments.namespace)
        self._writer = Writer(api, tracing)
        events = Events(api, arguments.identity)
        self._reporter = Reporter(api, self._known, self.predictors, events, clock)
        self._lock = threading.Lock()
        self._busy: dict[int, float] = {}

    # ---- work ------------------------------------------------------------------------------------------------------

    def look_at_everything(self) -> None:
        """Adds all there is; for the start, and once in a while. A look at a namespace leads to its configs."""
        self._add_all_namespaces()
        self.queue.add(("config", *self._known.default))

    def work(self, stopping: threading.Event, may_write: Callable[[], bool]) -> None:
        """Takes keys until told to stop; each is looked at only while this replica may write."""
        while not stopping.is_set():
            work = self.queue.get(timeout_s=1.0)
            if work is not None:
                self._look(work, may_write)
            QUEUE_DEPTH.set(len(self.queue))

    def stuck_seconds(self) -> float:
        """How long the slowest look under way has taken."""
        now = time.monotonic()
        with self._lock:
            return max((now - began for began in self._busy.values()), default=0.0)

    def _look(self, work: Work, may_write: Callable[[], bool]) -> None:
        thread, key = threading.get_ident(), f"{work[1]}/{work[2]}"
        with self._lock:
            self._busy[thread] = time.monotonic()
        try:
            if not may_write():
                self.queue.failed(work)
                return
            with RECONCILE_SECONDS.labels(work[0]).time(), self._tracing.span(RECONCILE, kind=work[0], key=key):
                self._reconcile(work)
            self.queue.done(work)
        except Terminating:
            self.queue.done(work)
        except Exception as error:  # noqa: BLE001 - whatever one key meets, the others must go on
            self._again(work, error)
        finally:
            with self._lock:
                self._busy.pop(thread, None)

    def _again(self, work: Work, error: Exception) -> None:
        RECONCILE_FAILURES.labels(work[0]).inc()
        seconds = self.queue.failed(work)
        fields = {"kind": work[0], "key": f"{work[1]}/{work[2]}", "again_in_seconds": seconds}
        trace = None if isinstance(error, ApiError | InvalidDocument) else error
        said = f"{work[0]} {work[1]}/{work[2]} is looked at again in {seconds:.1f} s: {error}"
        _logger.warning("%s", said, exc_info=trace, extra={"fields": fields})

    def _reconcile(self, work: Work) -> None:
        kind, namespace, name = work
        if kind == "namespace":
            self._reconcile_namespace(namespace)
        else:
            self._reconcile_config((namespace, name))

    # ---- what was heard --------------------------------------------------------------------------------------------

    def _config_heard(self, old: Config | None, new: Config | None) -> None:
        """Status is the operator's own word: a change of it alone is none."""
        if old is not None and new is not None and replace(old, status={}) == replace(new, status={}):
            return
        config = new or old
        if config is None:
            return
        if config.meta.key == self._known.default:
            self.look_at_everything()
            return
        # Its own turn comes after its namespace's, which decides what it is for.
        self.queue.add(("namespace", config.meta.namespace, ""))
        if new is None:
            self.queue.add(("config", *config.meta.key))

    def _runtime_heard(self, old: Runtime | None, new: Runtime | None) -> None:
        runtime = new or old
        if runtime is None or (old is not None and new is not None and old.runs_prism == new.runs_prism):
            return
        if runtime.meta.namespace:
            self.queue.add(("namespace", runtime.meta.namespace, ""))
        else:
            self._add_all_namespaces()

    def _in_namespace_heard(self, old: Service | Owned | None, new: Service | Owned | None) -> None:
        heard = new or old
        if heard is not None:
            self.queue.add(("namespace", heard.meta.namespace, ""))

    def _pod_heard(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        selection = self._known.selections.get(pod.meta.namespace)
        if selection is not None and pod.service in selection.services:
            self._add_config(selection.services[pod.service] or self._known.default)

    def _add_all_namespaces(self) -> None:
        for namespace in self.cluster.namespaces():
            self.queue.add(("namespace", namespace, ""))

    def _add_config(self, key: Key) -> None:
        """A moment later, so that what many pods say is one look; for the default, which is for many, some more."""
        many = sum(len(one.services) for one in list(self._known.selections.values()))
        seconds = _CALM_SECONDS + (many / 2000 if key == self._known.default else 0.0)
        self.queue.add_after(("config", *key), seconds)

    # ---- a namespace -----------------------------------------------------------------------------------------------

    def _reconcile_namespace(self, namespace: str) -> None:
        known = self._known
        configs = known.configs(namespace)
        usable = [one for one in configs if one.spec is not None or known.last_good(one.config) is not None]
        services = self.cluster.services.of_namespace(namespace)
        before = known.selections.get(namespace)
        selection = select(usable, services, self.cluster.runtimes_for(namespace), known.documented(namespace))
        known.selections[namespace] = selection
        try:
            self._write(namespace, selection, services)
            known.failures.pop(namespace, None)
        except (ApiError, InvalidDocument) as error:
            known.failures[namespace] = f"the settings could not be written in {namespace}: {error}"
            raise
        finally:
            self._look_at_configs(configs, before, selection)
        if not configs and not services:
            known.selections.pop(namespace, None)

    def _look_at_configs(self, configs: Sequence[Judged], before: Selection | None, selection: Selection) -> None:
        for judged in configs:
            self.queue.add(("config", *judged.config.meta.key))
        concerned = selection.targets(None) or (before is not None and before.targets(None))
        if concerned and self.cluster.configs.get(self._known.default) is not None:
            self._add_config(self._known.default)

    def _write(self, namespace: str, selection: Selection, services: Sequence[Service]) -> None:
        cluster, served = self.cluster, [one for one in services if one.meta.name in selection.services]
        maps = settings_maps(namespace, self._known.texts(namespace))
        self._writer.bring(kinds.CONFIG_MAPS, maps, cluster.maps.of_namespace(namespace))
        if self._arguments.network_policy:
            policies = self._policies(namespace, [one.meta.name for one in served])
            self._writer.bring(kinds.POLICIES, policies, cluster.policies.of_namespace(namespace))
        if self._arguments.disruption_budgets:
            budgets = cluster.budgets.of_namespace(namespace)
            own = [budget for budget in budgets if MANAGED.items() <= budget.meta.labels.items()]
            foreign = [budget for budget in budgets if budget not in own]
            self._writer.bring(kinds.BUDGETS, disruption_budgets(namespace, served, foreign), own)

    def _policies(self, namespace: str, services: Sequence[str]) -> dict[str, Json]:
        if not services:
            return {}
        policy = admin_policy(
            namespace,
            services,
            operator_namespace=self._arguments.namespace,
            operator_labels=self._arguments.operator_labels,
            serving_ports=self._arguments.serving_ports,
            admin_port=self._arguments.admin_port,
        )
        return {policy["metadata"]["name"]: policy}

    # ---- a config --------------------------------------------------------------------------------------------------

    def _reconcile_config(self, key: Key) -> None:
        known, config = self._known, self.cluster.configs.get(key)
        if config is None or config.going:
            self.predictors.forget(key)
            known.forget(key)
            return
        if not known.is_decided(key):
            # Without its services a trial would look as if it had lost them.
            self.queue.add_after(("config", *key), _UNHEARD_SECONDS)
            return
        judged, memory, last_good = known.judged(config), known.memory(config), known.last_good(config)
        pods = known.pods_of(known.targets(key))
        before = memory.trial
        memory.trial, memory.window = carry_on(
            judged, before, memory.window, last_good, self._views(pods), self._clock()
        )
        _count_verdict(before, memory.trial)
        decided = plan(judged, memory.trial, last_good)
        moved = decided != memory.plan
        memory.plan, memory.plan_generation, memory.in_force = decided, config.meta.generation, decided.stable
        if moved:
            self._plan_moved(key)
        self._ask(key, pods, running=memory.trial is not None and memory.trial.phase in RUNNING)
        reported = self._reporter.report(judged, memory, pods, _goal(judged, decided))
        self._look_again(key, reported, memory.trial, bool(pods))

    def _plan_moved(self, key: Key) -> None:
        if key == self._known.default:
            self._add_all_namespaces()
        else:
            self.queue.add(("namespace", key[0], ""))

    def _look_again(self, key: Key, reported: bool, trial: RolloutStatus | None, has_targets: bool) -> None:
        if not reported:
            self.queue.add_after(("config", *key), _UNHEARD_SECONDS)
        elif trial is not None and trial.phase in RUNNING:
            self.queue.add_after(("config", *key), TRIAL_SECONDS)
        elif has_targets:
            self.queue.add_after(("config", *key), LIVE_EVERY_SECONDS)

    def _ask(self, key: Key, pods: dict[Key, list[Pod]], *, running: bool) -> None:
        """Has the pods asked, each for the settings that it should obey."""
        wanted: dict[PodKey, Wanted] = {}
        for target, of_target in pods.items():
            stable, candidate, tried = self._known.document(target)
            for pod in of_target:
                settings = candidate if candidate is not None and pod.meta.name in tried else stable
                if pod.address:
                    wanted[pod.meta.key] = Wanted(pod.address, pod.process, settings.digest)
                    self._nudge(pod, target, settings.digest)
        self.predictors.watch(key, wanted, brisk=running)

    def _nudge(self, pod: Pod, target: Key, digest: str) -> None:
        """Lets the kubelet bring a written document into the pod at once, where that is wished."""
        if not self._arguments.nudge_pods or pod.nudge == digest:
            return
        if self.predictors.heard(pod.meta.key).digest == digest or not self._known.is_written(target):
            return
        try:
            self._api.merge(kinds.PODS, *pod.meta.key, {"metadata": {"annotations": {NUDGE_ANNOTATION: digest}}})
        except (Missing, Refused) as error:
            _logger.info("Pod %s was not nudged: %s", pod.meta.name, error)

    def _views(self, pods: dict[Key, list[Pod]]) -> tuple[TargetView, ...]:
        """The targets as a trial sees them."""
        return tuple(
            TargetView(namespace, name, tuple(self._view(pod) for pod in of_target))
            for (namespace, name), of_target in pods.items()
        )

    def _view(self, pod: Pod) -> PodView:
        heard = self.predictors.heard(pod.meta.key)
        return PodView(pod.meta.name, pod.ready, pod.process, heard.digest, heard.figures, heard.taken)


def _goal(judged: Judged, decided: Plan) -> Settings | None:
    """What the status counts pods by: the spec's own settings, or the last good ones of a spec that is none."""
    return settings_of(judged.config, judged.spec) if judged.spec is not None else decided.stable


def _count_verdict(before: RolloutStatus | None, after: RolloutStatus | None) -> None:
    if after is not None and after.verdict is not None and (before is None or before.verdict != after.verdict):
        ROLLOUTS.labels(str(after.verdict)).inc()
