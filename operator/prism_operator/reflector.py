"""Keeps a cache equal to what the API server holds: lists, watches, and begins again whatever happens to the watch.

A watch may end, fall silent while its connection looks alive, be told that its version is gone (410), or get an ERROR
object in place of a change. None of these loses anything: each leads to another watch from the last version, or to
another list. Everything is listed again once in a while in any case.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from prism_operator.api import Api, Resource
from prism_operator.cache import Cache, HasMeta
from prism_operator.errors import ApiError, Forbidden, Missing, Outdated, api_error
from prism_operator.jitter import between
from prism_operator.metrics import CACHED_OBJECTS, WATCHES_BEGUN
from prism_operator.objects import Json

_logger = logging.getLogger(__name__)

WATCH_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 10.0

V = TypeVar("V", bound=HasMeta)


class Reflector(threading.Thread, Generic[V]):
    """Follows one kind, in one namespace or in all."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        cache: Cache[V],
        read: Callable[[Json], V],
        *,
        namespace: str = "",
        selector: str = "",
        resync_s: float = 600.0,
        silence_s: float = 90.0,
    ) -> None:
        super().__init__(name=f"reflector-{resource.plural}{'-' if namespace else ''}{namespace}", daemon=True)
        self._api = api
        self._resource = resource
        self._cache = cache
        self._read = read
        self._namespace = namespace
        self._selector = selector
        # Spread, so that the kinds of one operator are not all listed at the same moment.
        self._resync_s = resync_s * between(0.9, 1.1)
        self._silence_s = silence_s
        self._stopping = threading.Event()
        self._listed = threading.Event()
        self._version = ""
        self._trouble = f"{self._resource.plural} are still to be listed"

    @property
    def trouble(self) -> str:
        """What keeps this kind from being known, as a sentence; empty once it has been listed."""
        return "" if self._listed.is_set() else self._trouble

    @property
    def resource(self) -> Resource:
        return self._resource

    def wait_listed(self, timeout_s: float | None = None) -> bool:
        """Whether all objects were listed once."""
        return self._listed.wait(timeout_s)

    def stop(self) -> None:
        """Ends the thread at the next change, or when its watch ends."""
        self._stopping.set()

    def run(self) -> None:
        failures = 0
        why = "start"
        while not self._stopping.is_set():
            try:
                self._list()
                failures = 0
                why = self._watch_until_resync(why)
            except Exception as error:  # noqa: BLE001 - a kind that nobody follows any more would be noticed by nobody
                why = "failed"
                self._report(error, failures)
                self._stopping.wait(min(0.5 * 2**failures, LONGEST_PAUSE_SECONDS) * between(0.8, 1.2))
                failures = min(failures + 1, 10)

    def _list(self) -> None:
        items, version = self._api.list(self._resource, self._namespace, self._selector)
        self._cache.replace([self._read(item) for item in items], self._namespace or None)
        self._version = version
        self._listed.set()
        CACHED_OBJECTS.labels(self._resource.plural).set(len(self._cache))

    def _watch_until_resync(self, why: str) -> str:
        """Watches again and again until all should be listed once more; returns why."""
        until = time.monotonic() + self._resync_s
        while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
            WATCHES_BEGUN.labels(self._resource.plural, why).inc()
            try:
                self._watch(max(1.0, min(left, WATCH_SECONDS)))
                why = "ended"
            except Outdated:
                return "gone"
            except ApiError as error:
                if error.status:
                    raise
                # No word of the API server: the list that follows may wait, a version once heard stays good.
                _logger.info("The watch of %s is begun again: %s", self._resource.plural, error)
                why = "silent"
                self._stopping.wait(between(0.2, 1.0))
        return "resync"

    def _watch(self, lasts_s: float) -> None:
        events = self._api.watch(
            self._resource,
            self._namespace,
            self._selector,
            self._version,
            lasts_s=lasts_s,
            silence_s=min(self._silence_s, lasts_s + 10.0),
        )
        for event in events:
            self._take(event["type"], event["object"])
            if self._stopping.is_set():
                return

    def _take(self, kind: str, data: Json) -> None:
        if kind == "ERROR":
            raise api_error(f"watch {self._resource.plural}", int(data.get("code", 500)), str(data.get("message", "")))
        self._version = data["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        value = self._read(data)
        if kind == "DELETED":
            self._cache.remove(value.meta.key)
        else:
            self._cache.put(value)
        CACHED_OBJECTS.labels(self._resource.plural).set(len(self._cache))

    def _report(self, error: Exception, failures: int) -> None:
        self._trouble = _advice(self._resource, error)
        level = logging.WARNING if failures in (0, 5) else logging.DEBUG
        _logger.log(level, "%s", self._trouble, exc_info=None if isinstance(error, ApiError) else error)


def _advice(resource: Resource, error: Exception) -> str:
    if isinstance(error, Missing):
        return f"the cluster knows no {resource.kind} ({resource.api_version}): install its CustomResourceDefinition"
    if isinstance(error, Forbidden):
        return f"the operator's role lacks list and watch on {resource.plural}: {error}"
    return f"{resource.plural} cannot be listed: {error}"
