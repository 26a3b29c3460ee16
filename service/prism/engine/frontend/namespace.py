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


def namespace(cache_salt: str | None, adapter: str | None = None, load: int = 0) -> str:
    """The namespace of a request; empty for none. An empty salt is no salt.

    Args:
        cache_salt: what the client sent.
        adapter: name of the LoRA adapter that serves the request.
        load: vLLM's id of this load of the adapter.
    """
    salt = f"salt:{cache_salt}" if cache_salt else ""
    if adapter is not None:
        name = adapter.replace("%", "%25").replace(":", "%3A")
        return ":".join(part for part in (f"prism:adapter:{name}:{load}", salt) if part)
    return f"prism:{salt}" if salt else ""
