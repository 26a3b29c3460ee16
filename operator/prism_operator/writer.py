"""Brings the objects that the operator owns from what they are to what they should be, and writes only differences."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from prism_operator.api import Api, Resource
from prism_operator.errors import Missing
from prism_operator.manifests import MANAGED
from prism_operator.objects import Json, Owned
from prism_operator.tracing import WRITE, Tracing

_logger = logging.getLogger(__name__)


class Writer:
    """Writes owned objects of one kind after the other."""

    def __init__(self, api: Api, tracing: Tracing) -> None:
        self._api = api
        self._tracing = tracing

    def bring(self, resource: Resource, wanted: Mapping[str, Json], present: Sequence[Owned]) -> int:
        """Makes the owned objects of a namespace, `present`, those of `wanted`, by name; returns the writes it took."""
        there = {owned.meta.name: owned for owned in present}
        changes: list[Callable[[], None]] = []
        for name, body in wanted.items():
            changes += self._changes(resource, body, there.get(name))
        changes += [self._deletion(resource, owned) for name, owned in there.items() if name not in wanted]
        for change in changes:
            change()
        return len(changes)

    def _changes(self, resource: Resource, body: Json, present: Owned | None) -> list[Callable[[], None]]:
        if present is None:
            return [self._application(resource, body)]
        if _same(body, present):
            return []
        if present.immutable:
            # Somebody has frozen it; it can only be made anew.
            return [self._deletion(resource, present), self._application(resource, body)]
        foreign = {key: None for key in present.content if key not in body.get("data", present.content)}
        if foreign:
            return [self._removal(resource, present, foreign), self._application(resource, body)]
        return [self._application(resource, body)]

    def _application(self, resource: Resource, body: Json) -> Callable[[], None]:
        def write() -> None:
            self._api.apply(resource, body)

        return self._traced("apply", resource, body["metadata"]["namespace"], body["metadata"]["name"], write)

    def _removal(self, resource: Resource, owned: Owned, keys: Mapping[str, None]) -> Callable[[], None]:
        """Takes out keys that apply would leave, since somebody else has set them."""
        namespace, name = owned.meta.key

        def write() -> None:
            self._api.merge(resource, namespace, name, {"data": dict(keys)})

        return self._traced("remove keys", resource, namespace, name, write)

    def _deletion(self, resource: Resource, owned: Owned) -> Callable[[], None]:
        namespace, name = owned.meta.key

        def write() -> None:
            with contextlib.suppress(Missing):
                self._api.delete(resource, namespace, name)

        return self._traced("delete", resource, namespace, name, write)

    def _traced(
        self, verb: str, resource: Resource, namespace: str, name: str, write: Callable[[], None]
    ) -> Callable[[], None]:
        def traced() -> None:
            with self._tracing.span(WRITE, verb=verb, kind=resource.kind, namespace=namespace, object=name):
                write()
            _logger.info(
                "%s %s %s/%s",
                verb,
                resource.kind,
                namespace,
                name,
                extra={"fields": {"verb": verb, "namespace": namespace}},
            )

        return traced


def _same(body: Json, present: Owned) -> bool:
    """Whether all that is wanted is there, and in a ConfigMap nothing else; the API server adds defaults to a spec."""
    if not MANAGED.items() <= present.meta.labels.items() or present.immutable:
        return False
    return present.content == body["data"] if "data" in body else _within(body["spec"], present.content)


def _within(wanted: object, present: object) -> bool:
    """Whether `present` says all that `wanted` says."""
    if isinstance(wanted, dict) and isinstance(present, dict):
        return all(key in present and _within(value, present[key]) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(present, list):
        return len(wanted) == len(present) and all(map(_within, wanted, present))
    return wanted == present
