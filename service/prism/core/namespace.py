"""The one place that makes a namespace: what may share KV, as one string.

It is both vLLM's cache salt and the namespace of PRISM's own identities. A base model without a salt has none, so that
its block hashes are those of stock vLLM. For consumers of vLLM's KV events the forms are

    (none)                                    base model, no salt
    prism:salt:<salt>                         base model, the client's `cache_salt`
    prism:adapter:<name>:<load>               a LoRA adapter; <load> is new with each load of it
    prism:adapter:<name>:<load>:salt:<salt>   both

with `%` and `:` of an adapter's name written as `%25` and `%3A`: no salt can equal an adapter, nor one another's.
"""

from __future__ import annotations

import itertools
import re

_SALT = re.compile(r"prism:(?:adapter:[^:]*:[0-9]+:)?salt:(.*)", re.DOTALL)


def namespace(cache_salt: str | None, adapter: str | None = None, load: int = 0) -> str:
    """The namespace of a request; empty for none. An empty salt is no salt.

    Args:
        cache_salt: what the client sent.
        adapter: name of the LoRA adapter that serves the request.
        load: which load of an adapter of this name it is.
    """
    salt = f"salt:{cache_salt}" if cache_salt else ""
    if adapter is not None:
        name = adapter.replace("%", "%25").replace(":", "%3A")
        return ":".join(part for part in (f"prism:adapter:{name}:{load}", salt) if part)
    return f"prism:{salt}" if salt else ""


class AdapterLoads:
    """Numbers the loads of adapters: another number with each load, under an old name or in place of a loaded one.

    vLLM keeps an adapter's own id where it is loaded in place, so that id does not tell its weights apart.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._of: dict[str, int] = {}

    def loaded(self, adapter: str) -> None:
        """It is about to be loaded: from now on, requests for this name mean the new weights."""
        self._of[adapter] = next(self._numbers)

    def number(self, adapter: str) -> int:
        """Of its last load; one that was loaded in another way gets its number here."""
        if adapter not in self._of:
            self.loaded(adapter)
        return self._of[adapter]


def salt_of(name: str) -> str:
    """The client's salt in a namespace, whatever the adapter; empty where there is none."""
    found = _SALT.fullmatch(name)
    return found[1] if found is not None else ""
