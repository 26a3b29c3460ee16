"""Which PrismConfig is for which InferenceService.

A config selects services of its own namespace by their labels. Of several that select one service the oldest has it;
the others are told so. The config `default` of the release's namespace is for every service that runs PRISM and that
no other selects, in every namespace; its selector is ignored and it takes no part in conflicts.

A service runs PRISM if its runtime, named or chosen by KServe, carries the label `serving.prism.dev/runtime: "true"`,
or if the service itself does (one that brings its own container). Others are not touched, whoever selects them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from prism.config.complaint import complaint
from prism.config.schema import LabelOperator, LabelRequirement, PrismSpec, Selector
from prism_operator.names import LABEL_RUNTIME
from prism_operator.objects import Config, Key, Runtime, Service


@dataclass(frozen=True, slots=True)
class Judged:
    """A PrismConfig and what its spec says.

    Attributes:
        spec: the settings; None if this version does not understand them.
        complaint: why not, in a sentence that names the field.
        selector: what it selects; also known of a spec that is wrong elsewhere.
        held: services that keep its settings while its spec cannot be read.
    """

    config: Config
    spec: PrismSpec | None
    complaint: str
    selector: Selector | None
    held: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Selection:
    """Who gets what in one namespace.

    Attributes:
        services: all that run PRISM, by name, each with the config whose settings it gets; None: the default's.
        conflicts: for a config the services that an older one has, with that one's name.
        strangers: for a config the selected services that do not run PRISM.
    """

    services: Mapping[str, Key | None]
    conflicts: Mapping[Key, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    strangers: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)

    def targets(self, config: Key | None) -> tuple[str, ...]:
        """The services that get this config's settings, or with None the default's."""
        return tuple(sorted(name for name, owner in self.services.items() if owner == config))


def judge(config: Config) -> Judged:
    """Reads the spec as this version understands it."""
    try:
        # Only the spelling of documents counts here, not Python's.
        spec = PrismSpec.model_validate(config.spec, by_alias=True, by_name=False)
    except ValidationError as error:
        _, sentence = complaint(PrismSpec, error)
        return Judged(config, None, f"spec.{sentence}", _selector_alone(config))
    return Judged(config, spec, "", spec.selector)


def _selector_alone(config: Config) -> Selector | None:
    try:
        return Selector.model_validate(config.spec.get("selector"), by_alias=True, by_name=False)
    except ValidationError:
        return None


def runs_prism(service: Service, runtimes: Mapping[Key, Runtime], *, did: bool = False) -> bool:
    """Whether the service's predictor is PRISM's. `runtimes` holds those of the cluster under an empty namespace.

    A runtime that is not there says nothing, least of all that its pods have gone: then it is as it was, `did`.
    """
    if service.meta.labels.get(LABEL_RUNTIME) == "true":
        return True
    if not service.runtime:
        return False
    of_namespace = runtimes.get((service.meta.namespace, service.runtime))
    if service.runtime_scope == "cluster":
        of_namespace = None
    runtime = of_namespace or runtimes.get(("", service.runtime))
    return runtime.runs_prism if runtime is not None else did


def select(
    configs: Iterable[Judged],
    services: Sequence[Service],
    runtimes: Mapping[Key, Runtime],
    documented: Container[str] = (),
) -> Selection:
    """Decides for one namespace.

    Args:
        configs: those that have settings to give, without the default.
        services: all InferenceServices of the namespace.
        runtimes: those that they may name.
        documented: the services that have a document already.
    """
    owners: dict[str, Key | None] = {
        service.meta.name: None
        for service in services
        if runs_prism(service, runtimes, did=service.meta.name in documented)
    }
    conflicts: dict[Key, list[tuple[str, str]]] = {}
    strangers: dict[Key, list[str]] = {}
    for judged in sorted(configs, key=_age):
        key = judged.config.meta.key
        for service in sorted(services, key=lambda one: one.meta.name):
            name = service.meta.name
            if not matches(judged.selector, service.meta.labels) and name not in judged.held:
                continue
            if name not in owners:
                strangers.setdefault(key, []).append(name)
            elif (owner := owners[name]) is not None:
                conflicts.setdefault(key, []).append((name, owner[1]))
            else:
                owners[name] = key
    return Selection(
        owners,
        {key: tuple(found) for key, found in conflicts.items()},
        {key: tuple(found) for key, found in strangers.items()},
    )


def matches(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """As Kubernetes' label selectors match: an absent one nothing, an empty one everything."""
    if selector is None:
        return False
    equal = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return equal and all(_holds(requirement, labels) for requirement in selector.match_expressions)


def _holds(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    if requirement.operator is LabelOperator.IN:
        return value in requirement.values
    if requirement.operator is LabelOperator.NOT_IN:
        return value not in requirement.values
    return (value is not None) == (requirement.operator is LabelOperator.EXISTS)


def _age(judged: Judged) -> tuple[str, str]:
    return judged.config.meta.created, judged.config.meta.name
