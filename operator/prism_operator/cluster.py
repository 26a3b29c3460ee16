"""All that the operator knows of the cluster: a cache for each kind, and the reflectors that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prism_operator import api as kinds
from prism_operator.api import Api, Resource
from prism_operator.arguments import Arguments
from prism_operator.cache import Cache
from prism_operator.manifests import MANAGED_SELECTOR
from prism_operator.names import DEFAULT_CONFIG, LABEL_SERVICE
from prism_operator.objects import (
    Config,
    Key,
    Owned,
    Pod,
    Runtime,
    Service,
    is_predictor,
    read_config,
    read_owned,
    read_pod,
    read_runtime,
    read_service,
)
from prism_operator.reflector import Reflector


@dataclass(frozen=True, slots=True)
class Cluster:
    """The caches. `runtimes` holds the cluster's under an empty namespace; `budgets` also those of others."""

    configs: Cache[Config]
    services: Cache[Service]
    runtimes: Cache[Runtime]
    cluster_runtimes: Cache[Runtime]
    pods: Cache[Pod]
    maps: Cache[Owned]
    policies: Cache[Owned]
    budgets: Cache[Owned]

    def namespaces(self) -> set[str]:
        """Those that hold anything that the operator might act on."""
        caches = (self.configs, self.services, self.maps, self.policies, self.budgets)
        return {namespace for cache in caches for namespace in cache.namespaces()}

    def runtimes_for(self, namespace: str) -> dict[Key, Runtime]:
        """The runtimes that services of the namespace may name."""
        found = (*self.cluster_runtimes.all(), *self.runtimes.of_namespace(namespace))
        return {runtime.meta.key: runtime for runtime in found}

    def predictor_pods(self, namespace: str) -> dict[str, list[Pod]]:
        """The predictor pods of a namespace that are not on their way out, by service."""
        found: dict[str, list[Pod]] = {}
        for pod in self.pods.of_namespace(namespace):
            if not pod.going and is_predictor(pod):
                found.setdefault(pod.service, []).append(pod)
        return found


def reflectors(api: Api, cluster: Cluster, arguments: Arguments) -> list[Reflector[Any]]:
    """A reflector for each kind and each watched namespace."""
    watched = arguments.watch_namespaces or ("",)

    def follow(
        resource: Resource, cache: Cache[Any], read: Callable[..., Any], selector: str = ""
    ) -> list[Reflector[Any]]:
        where = watched if resource.namespaced else ("",)
        return [_reflector(api, resource, cache, read, arguments, namespace, selector) for namespace in where]

    made = [
        *follow(kinds.CONFIGS, cluster.configs, read_config),
        *follow(kinds.SERVICES, cluster.services, read_service),
        *follow(kinds.RUNTIMES, cluster.runtimes, read_runtime),
        *follow(kinds.PODS, cluster.pods, read_pod, LABEL_SERVICE),
        *follow(kinds.CONFIG_MAPS, cluster.maps, read_owned, MANAGED_SELECTOR),
    ]
    if arguments.network_policy:
        made += follow(kinds.POLICIES, cluster.policies, read_owned, MANAGED_SELECTOR)
    if arguments.disruption_budgets:
        made += follow(kinds.BUDGETS, cluster.budgets, read_owned)
    if not arguments.watch_namespaces:
        made += follow(kinds.CLUSTER_RUNTIMES, cluster.cluster_runtimes, read_runtime)
    elif arguments.namespace not in arguments.watch_namespaces:
        # The default config stands there, and of that namespace nothing else matters.
        made.append(_reflector(api, kinds.CONFIGS, cluster.configs, read_config, arguments, arguments.namespace, ""))
    return made


def _reflector(
    api: Api,
    resource: Resource,
    cache: Cache[Any],
    read: Callable[..., Any],
    arguments: Arguments,
    namespace: str,
    selector: str,
) -> Reflector[Any]:
    return Reflector(
        api,
        resource,
        cache,
        read,
        namespace=namespace,
        selector=selector,
        resync_s=arguments.resync_seconds,
        silence_s=arguments.silence_seconds,
    )


def trouble(followed: Iterable[Reflector[Any]]) -> str:
    """What keeps the cluster from being known; empty once it is."""
    return next((reflector.trouble for reflector in followed if reflector.trouble), "")


def default_key(namespace: str) -> Key:
    """The PrismConfig for what no other selects, in the release's namespace."""
    return namespace, DEFAULT_CONFIG
