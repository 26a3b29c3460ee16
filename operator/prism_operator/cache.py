"""What the cluster holds, as far as the operator has heard: values of `objects`, by kind, namespace and name."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from prism_operator.objects import Key, Meta


class HasMeta(Protocol):
    """Whatever has Kubernetes' metadata."""

    @property
    def meta(self) -> Meta: ...


V = TypeVar("V", bound=HasMeta)
Heard = Callable[[V | None, V | None], None]


class Cache(Generic[V]):
    """The objects of one kind. Thread-safe; what it returns is a copy of references to frozen values."""

    def __init__(self, heard: Heard[V] | None = None) -> None:
        """`heard(old, new)` is called after each change that is one: None for what was not or is not there."""
        self._heard = heard
        self._lock = threading.Lock()
        self._namespaces: dict[str, dict[str, V]] = defaultdict(dict)

    def get(self, key: Key) -> V | None:
        with self._lock:
            return self._namespaces.get(key[0], {}).get(key[1])

    def of_namespace(self, namespace: str) -> list[V]:
        with self._lock:
            return list(self._namespaces.get(namespace, {}).values())

    def all(self) -> list[V]:
        with self._lock:
            return [value for values in self._namespaces.values() for value in values.values()]

    def namespaces(self) -> list[str]:
        """Those that hold any object of this kind."""
        with self._lock:
            return [namespace for namespace, values in self._namespaces.items() if values]

    def __len__(self) -> int:
        with self._lock:
            return sum(len(values) for values in self._namespaces.values())

    def put(self, value: V) -> None:
        namespace, name = value.meta.key
        with self._lock:
            old = self._namespaces[namespace].get(name)
            self._namespaces[namespace][name] = value
        self._tell(old, value)

    def remove(self, key: Key) -> None:
        namespace, name = key
        with self._lock:
            values = self._namespaces.get(namespace, {})
            old = values.pop(name, None)
            if not values:
                self._namespaces.pop(namespace, None)
        self._tell(old, None)

    def replace(self, values: Iterable[V], namespace: str | None = None) -> None:
        """Takes a whole list, of one namespace or of all: what is not in it is gone."""
        listed = {value.meta.key: value for value in values}
        present = self.all() if namespace is None else self.of_namespace(namespace)
        for key in {value.meta.key for value in present} - set(listed):
            self.remove(key)
        for value in listed.values():
            self.put(value)

    def _tell(self, old: V | None, new: V | None) -> None:
        if self._heard is not None and old != new:
            self._heard(old, new)
