"""What the chart's hooks and `helm test` run: `python -m prism_operator.install COMMAND`.

    crd             before an install or upgrade, where the CRD belongs to another release: applies this version's
    default-config  after an install or upgrade: creates the PrismConfig `default` where there is none
    check           `helm test`: applies a PrismConfig and waits until the operator has accepted it
    clean           after an uninstall: removes what the operator made and nobody needs without it

Each may be run again at any time. A call that fails for the moment is repeated until the time is up; what cannot
succeed ends with one sentence on stderr and status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from prism.config.crd import NAME as CRD_NAME
from prism.config.crd import custom_resource_definition
from prism.errors import DeploymentError, PrismError
from prism_operator.api import BUDGETS, CONFIGS, LEASES, PODS, POLICIES, Api, Resource, connect
from prism_operator.errors import Forbidden, Missing, Outdated, Terminating, Unavailable
from prism_operator.manifests import MANAGED_SELECTOR
from prism_operator.names import ADMIN_POLICY, DEFAULT_CONFIG, GROUP, LABEL_MANAGED_BY
from prism_operator.objects import Json

DEFINITIONS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
_PAUSE_SECONDS: Final = 1.0


T = TypeVar("T")


def apply_definition(api: Api, release: str, namespace: str, *, seconds: float) -> None:
    """Brings the CRD to this version and makes it the release's own, by the marks that Helm knows its objects by."""
    definition = custom_resource_definition()
    metadata = definition["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), LABEL_MANAGED_BY: "Helm"}
    metadata["annotations"] |= {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace}

    def applied() -> bool:
        api.apply(DEFINITIONS, definition)
        return _holds(api.get(DEFINITIONS, "", CRD_NAME), "Established")

    _until(applied, seconds, f"The CRD {CRD_NAME} was applied, but the API server does not serve it.")


def create_default(api: Api, namespace: str, spec: Json, *, seconds: float) -> bool:
    """Creates the PrismConfig `default`; False if there is one, which stays as it is."""
    body = _config(DEFAULT_CONFIG, spec)

    def created() -> str:
        try:
            api.create(CONFIGS, namespace, body)
        except Outdated:
            return "there"
        except Missing:  # the CRD is too new to be served yet
            return ""
        return "created"

    missing = f"The API server serves no {CONFIGS.plural}: install the CRD of the chart first."
    return _until(created, seconds, missing) == "created"


def check_operator(api: Api, namespace: str, name: str, *, seconds: float) -> str:
    """Applies a PrismConfig that selects nothing, waits until the operator has accepted it, and removes it.

    Returns:
        What the operator said of it.
    """
    _remove(api, CONFIGS, namespace, name)
    api.create(CONFIGS, namespace, _config(name, {"selector": {"matchLabels": {f"{GROUP}/config": name}}}))
    try:
        silent = f"The operator said nothing of the PrismConfig {name}: read its log and look at its Lease."
        return _until(lambda: _accepted(api.get(CONFIGS, namespace, name)), seconds, silent)
    finally:
        _remove(api, CONFIGS, namespace, name)


def clean_up(api: Api, namespaces: Sequence[str], own: Sequence[tuple[Resource, str, str]], *, seconds: float) -> int:
    """Removes the NetworkPolicies and PodDisruptionBudgets that the operator made; returns how many there were.

    Args:
        namespaces: where to look; an empty name is all of them.
        own: further objects that may be there, as kind, namespace and name.
    """

    def removed() -> tuple[int]:
        made = [
            (resource, one["metadata"]["namespace"], one["metadata"]["name"])
            for namespace in namespaces
            for resource in (POLICIES, BUDGETS)
            for one in api.list(resource, namespace, MANAGED_SELECTOR)[0]
            if resource is BUDGETS or one["metadata"]["name"] == ADMIN_POLICY
        ]
        for resource, namespace, name in (*made, *own):
            _remove(api, resource, namespace, name)
        return (len(made),)

    return _until(removed, seconds, "")[0]


def _config(name: str, spec: Json) -> Json:
    return {"apiVersion": CONFIGS.api_version, "kind": CONFIGS.kind, "metadata": {"name": name}, "spec": spec}


def _holds(found: Json, condition: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _accepted(config: Json) -> str:
    """What the condition `Accepted` says of the present generation, as soon as it says anything.

    Raises:
        DeploymentError: the operator does not accept the config.
    """
    for one in (config.get("status") or {}).get("conditions") or ():
        if one["type"] != "Accepted" or one.get("observedGeneration") != config["metadata"]["generation"]:
            continue
        said = f"{one['reason']}: {one['message']}"
        if one["status"] == "True":
            return said
        raise DeploymentError(f"The operator does not accept the PrismConfig {config['metadata']['name']}: {said}")
    return ""


def _remove(api: Api, resource: Resource, namespace: str, name: str) -> None:
    try:
        api.delete(resource, namespace, name)
    except Missing:
        return


def _until(attempt: Callable[[], T], seconds: float, otherwise: str) -> T:
    """Repeats `attempt` until what it returns is true or the time is up.

    A role that was bound a moment ago is not known to all of the API server yet, so Forbidden is for the moment too.
    """
    deadline = time.monotonic() + seconds
    failure: PrismError = DeploymentError(otherwise)
    while True:
        try:
            result = attempt()
        except (Forbidden, Terminating, Unavailable) as error:
            failure = error
        else:
            if result:
                return result
            failure = DeploymentError(otherwise)
        if time.monotonic() + _PAUSE_SECONDS > deadline:
            raise failure
        time.sleep(_PAUSE_SECONDS)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line; leaves the process with a sentence if it cannot be used."""
    return _parser().parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prism_operator.install", description="What the chart's hooks and `helm test` run."
    )
    parser.add_argument("--kubeconfig", help="a kubeconfig file; by default the pod's service account, then KUBECONFIG")
    parser.add_argument("--context", help="the context in the kubeconfig file")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    crd = _command(commands, "crd", _crd, "bring the CRD to this version and make it a release's own")
    crd.add_argument("--release-name", required=True, help="the release that it shall belong to")
    crd.add_argument("--release-namespace", required=True, help="that release's namespace")

    default = _command(commands, "default-config", _default, "create the PrismConfig default where there is none")
    _add_namespace(default)
    default.add_argument("--spec", type=_object, default={}, help="its spec, as JSON")

    check = _command(commands, "check", _check, "apply a PrismConfig and wait until it is accepted")
    _add_namespace(check)
    check.add_argument("--name", default="prism-test", help="name of the PrismConfig, which is removed again")

    clean = _command(commands, "clean", _clean, "remove NetworkPolicies and PodDisruptionBudgets of the operator")
    _add_namespace(clean)
    clean.add_argument("--namespaces", default="", metavar="A,B", help="where; by default in all namespaces")
    clean.add_argument("--lease", help="the Lease of the release's operator, to be removed too")
    clean.add_argument("--pod", help="the pod that `helm test` left, to be removed too")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[Api, argparse.Namespace], str], about: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try")
    parser.set_defaults(run=run)
    return parser


def _add_namespace(parser: argparse.ArgumentParser) -> None:
    own = os.environ.get("POD_NAMESPACE")
    parser.add_argument("--namespace", default=own, required=not own, help="by default POD_NAMESPACE")


def _object(text: str) -> Json:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _crd(api: Api, given: argparse.Namespace) -> str:
    apply_definition(api, given.release_name, given.release_namespace, seconds=given.seconds)
    return f"The CRD {CRD_NAME} is up to date and belongs to the release {given.release_name}."


def _default(api: Api, given: argparse.Namespace) -> str:
    created = create_default(api, given.namespace, given.spec, seconds=given.seconds)
    return "The PrismConfig default was created." if created else "There is a PrismConfig default; it stays as it is."


def _check(api: Api, given: argparse.Namespace) -> str:
    said = check_operator(api, given.namespace, given.name, seconds=given.seconds)
    return f"The operator accepted a PrismConfig ({said})."


def _clean(api: Api, given: argparse.Namespace) -> str:
    own = [(kind, given.namespace, name) for kind, name in ((LEASES, given.lease), (PODS, given.pod)) if name]
    removed = clean_up(api, given.namespaces.split(","), own, seconds=given.seconds)
    return f"Removed {removed} objects that the operator had made."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    given = parse_arguments(argv)
    try:
        said = given.run(connect(given.kubeconfig, given.context), given)
    except PrismError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
