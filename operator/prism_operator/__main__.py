"""`python -m prism_operator`: runs until it is told to stop, or until another replica may have the Lease."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from prism.errors import DeploymentError
from prism_operator import cluster
from prism_operator.api import CONFIGS, Api, connect
from prism_operator.arguments import Arguments, parse_arguments
from prism_operator.errors import ApiError
from prism_operator.leader import Leadership
from prism_operator.logs import start_logging
from prism_operator.metrics import LEADER
from prism_operator.probes import metrics, probe, serve
from prism_operator.reconcile import Reconciler
from prism_operator.reflector import Reflector
from prism_operator.schema_age import outdated
from prism_operator.tracing import Tracing, start_tracing

_logger = logging.getLogger(__name__)

STUCK_SECONDS = 300.0
_SCHEMA_SECONDS = 5.0


class Operator:
    """One replica: knows the cluster from its start on, and writes while it holds the Lease."""

    def __init__(self, api: Api, arguments: Arguments, tracing: Tracing) -> None:
        self._arguments = arguments
        self._api = api
        self._stopping = threading.Event()
        self._lost = False
        self._reconciler = Reconciler(api, arguments, tracing)
        self._reflectors: list[Reflector[Any]] = cluster.reflectors(api, self._reconciler.cluster, arguments)
        self._leadership = Leadership(
            api,
            arguments.namespace,
            arguments.lease_name,
            arguments.identity,
            arguments.lease_seconds,
            won=self._begin,
            lost=self._give_up,
        )
        self._workers: list[threading.Thread] = []
        self._schema_trouble = "the cluster's PrismConfig schema is still to be looked at"
        self._schema_known = False

    def run(self) -> int:
        """Returns the exit status once told to stop."""
        for reflector in self._reflectors:
            reflector.start()
        self._reconciler.predictors.start()
        if self._wait_until_known():
            if self._arguments.leader_elect:
                self._leadership.start()
            else:
                LEADER.set(1)
                self._begin()
        self._watch_over()
        return self._end()

    def stop(self) -> None:
        """Lets `run` return."""
        self._stopping.set()

    def not_ready(self) -> str:
        """Why this replica could not take over now."""
        return self._schema_trouble or cluster.trouble(self._reflectors)

    def not_live(self) -> str:
        """Why only a restart helps."""
        threads = (*self._reflectors, *self._workers, self._leadership, self._reconciler.predictors)
        dead = [thread.name for thread in threads if thread.ident and not thread.is_alive()]
        if dead and not self._stopping.is_set():
            return f"{dead[0]} has died"
        stuck = self._reconciler.stuck_seconds()
        return f"one look takes {stuck:.0f} s already" if stuck > STUCK_SECONDS else ""

    def _wait_until_known(self) -> bool:
        """Whether all is known that must be before anything is written; False if told to stop before."""
        while not self._stopping.is_set():
            if self._schema_trouble:
                self._look_at_schema()
            if not self.not_ready():
                return True
            self._stopping.wait(0.2 if not self._schema_trouble else _SCHEMA_SECONDS)
        return False

    def _look_at_schema(self) -> None:
        try:
            trouble = outdated(self._api.served_schema(CONFIGS))
        except ApiError as error:
            if self._schema_known:
                return
            trouble = f"the cluster's PrismConfig schema cannot be read: {error}"
        else:
            self._schema_known = True
        if trouble and trouble != self._schema_trouble:
            _logger.warning("%s", trouble)
        self._schema_trouble = trouble

    def _begin(self) -> None:
        self._reconciler.look_at_everything()
        may_write: Callable[[], bool] = (
            (lambda: self._leadership.held) if self._arguments.leader_elect else (lambda: True)
        )
        for number in range(self._arguments.workers):
            work = threading.Thread(
                target=self._reconciler.work, args=(self._stopping, may_write), name=f"worker-{number}", daemon=True
            )
            work.start()
            self._workers.append(work)

    def _give_up(self) -> None:
        _logger.error("The Lease was lost: this replica ends, and begins again as one that waits for it")
        self._lost = True
        self._stopping.set()

    def _watch_over(self) -> None:
        """Looks at everything again once in a while, until told to stop.

        The schema too: an older chart, or a repository that is synchronised, may bring an older one at any time.
        """
        while not self._stopping.wait(self._pause_seconds()):
            before = self._schema_trouble
            self._look_at_schema()
            if not (before and self._schema_trouble):
                self._reconciler.look_at_everything()

    def _pause_seconds(self) -> float:
        soon = min(_SCHEMA_SECONDS, self._arguments.resync_seconds)
        return soon if self._schema_trouble else self._arguments.resync_seconds

    def _end(self) -> int:
        self._reconciler.queue.close()
        for worker in self._workers:
            worker.join(timeout=self._arguments.lease_seconds / 3)
        if self._arguments.leader_elect and not self._lost and self._leadership.ident:
            self._leadership.release()
        self._reconciler.predictors.stop()
        for reflector in self._reflectors:
            reflector.stop()
        return 1 if self._lost else 0


def main() -> int:
    """Runs the operator until it is told to stop or loses the Lease; returns the exit status."""
    arguments = parse_arguments()
    start_logging(arguments.log_level, arguments.log_format)
    try:
        tracing = start_tracing(arguments.identity, arguments.namespace)
        api = connect(arguments.kubeconfig, arguments.context)
    except DeploymentError as error:
        _logger.error("%s", error)
        return 2
    operator = Operator(api, arguments, tracing)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: operator.stop())
    serve(arguments.host, arguments.metrics_port, {"/metrics": metrics}, "metrics")
    probes = {"/healthz": probe(operator.not_live), "/readyz": probe(operator.not_ready)}
    serve(arguments.host, arguments.probes_port, probes, "probes")
    status = operator.run()
    tracing.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main())
