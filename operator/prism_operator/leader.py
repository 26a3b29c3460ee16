"""One writer of several replicas, by a Lease: taken when it is free, renewed while held, given back on the way out.

Whether another's Lease has run out is judged by how long it has not changed as seen here, never by comparing clocks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from prism_operator.api import LEASES, Api
from prism_operator.errors import ApiError, Missing, Outdated
from prism_operator.metrics import LEADER
from prism_operator.objects import Json

_logger = logging.getLogger(__name__)

RENEWALS = 7.5
"""Tries within the time that a Lease lasts: every 2 s of 15."""

GIVES_UP_AFTER = 2 / 3
"""Part of that time after which a holder that could not renew stops, before another may begin."""


class Leadership(threading.Thread):
    """Takes the Lease and keeps it. `won` is called once it is held, `lost` when it is not any more."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        identity: str,
        seconds: float,
        *,
        won: Callable[[], None],
        lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="leadership", daemon=True)
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._won = won
        self._lost = lost
        self._clock = clock
        self._stopping = threading.Event()
        self._seen: tuple[Json, float] = ({}, clock())
        self._renewed: float | None = None

    @property
    def held(self) -> bool:
        """Whether this replica may write."""
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < self._seconds * GIVES_UP_AFTER

    def run(self) -> None:
        while not self._stopping.is_set():
            began = self._clock()
            if self._try():
                first, self._renewed = self._renewed is None, began
                LEADER.set(1)
                if first:
                    _logger.info("%s holds the Lease %s/%s", self._identity, self._namespace, self._name)
                    self._won()
            elif self._renewed is not None and not self.held:
                LEADER.set(0)
                self._renewed = None
                self._lost()
                return
            self._stopping.wait(self._seconds / RENEWALS)

    def release(self) -> None:
        """Stops, and gives the Lease back so that another need not wait for it to run out."""
        self._stopping.set()
        self.join(timeout=self._seconds)
        if not self.held:
            return
        self._renewed = None
        LEADER.set(0)
        try:
            lease = self._api.get(LEASES, self._namespace, self._name)
            if lease["spec"].get("holderIdentity") == self._identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                self._api.replace(LEASES, self._namespace, self._name, {**lease, "spec": spec})
        except ApiError as error:
            _logger.info("The Lease could not be given back, and runs out by itself: %s", error)

    def _try(self) -> bool:
        """Whether the Lease is held, new or renewed, after this call."""
        try:
            return self._take(self._api.get(LEASES, self._namespace, self._name))
        except Missing:
            return self._make()
        except Outdated:
            return False
        except ApiError as error:
            _logger.warning("The Lease %s/%s cannot be had: %s", self._namespace, self._name, error)
            return False

    def _take(self, lease: Json) -> bool:
        spec = lease.get("spec") or {}
        if spec != self._seen[0]:
            self._seen = (spec, self._clock())
        holder = spec.get("holderIdentity") or ""
        mine = holder == self._identity
        lasts = float(spec.get("leaseDurationSeconds") or self._seconds)
        if holder and not mine and self._clock() - self._seen[1] < lasts:
            return False
        turns = int(spec.get("leaseTransitions") or 0) + (0 if mine else 1)
        acquired = spec.get("acquireTime") if mine else None
        self._api.replace(LEASES, self._namespace, self._name, {**lease, "spec": self._spec(turns, acquired)})
        return True

    def _make(self) -> bool:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
            "spec": self._spec(0, None),
        }
        try:
            self._api.create(LEASES, self._namespace, body)
        except ApiError as error:
            _logger.warning("The Lease %s/%s cannot be made: %s", self._namespace, self._name, error)
            return False
        return True

    def _spec(self, turns: int, acquired: str | None) -> Json:
        now = _now()
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "acquireTime": acquired or now,
            "renewTime": now,
            "leaseTransitions": turns,
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
