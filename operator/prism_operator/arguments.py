"""What the operator can be told on its command line."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_operator.names import LABEL_COMPONENT, LABEL_NAME

_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Arguments:
    """One value for each flag; durations in seconds."""

    namespace: str
    watch_namespaces: tuple[str, ...]
    identity: str
    leader_elect: bool
    lease_name: str
    lease_seconds: float
    kubeconfig: str | None
    context: str | None
    resync_seconds: float
    silence_seconds: float
    workers: int
    host: str
    metrics_port: int
    probes_port: int
    admin_port: int
    serving_ports: tuple[int, ...]
    ask_seconds: float
    nudge_pods: bool
    network_policy: bool
    disruption_budgets: bool
    operator_labels: Mapping[str, str]
    log_level: str
    log_format: str


def parse_arguments(argv: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> Arguments:
    """Reads the command line; leaves the process with a sentence if it cannot be used."""
    parser = _parser(environ)
    values = vars(parser.parse_args(argv))
    if not values["namespace"]:
        parser.error("--namespace is needed outside of a cluster: name the namespace of the release")
    values["watch_namespaces"] = tuple(values["watch_namespaces"])
    values["serving_ports"] = tuple(values["serving_ports"])
    if values["admin_port"] in values["serving_ports"]:
        parser.error("--serving-ports names the admin port, which only the operator may reach: remove it")
    return Arguments(**values)


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prism_operator",
        description="Turns PrismConfigs into the settings that PRISM's predictors obey, and says what became of them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_scope(parser, environ)
    _add_connection(parser)
    _add_ports(parser)
    _add_behaviour(parser)
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="info", help="least level"
    )
    parser.add_argument(
        "--log-format", choices=["json", "text"], default="json", help="one JSON object a line, or text"
    )
    return parser


def _add_scope(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    group = parser.add_argument_group("scope")
    group.add_argument(
        "--namespace",
        default=environ.get("POD_NAMESPACE") or _own_namespace(),
        help="the release's namespace: the Lease and the PrismConfig named default stand there; "
        "by default POD_NAMESPACE, or that of the pod's service account",
    )
    group.add_argument(
        "--watch-namespaces",
        type=_names,
        default=(),
        metavar="A,B",
        help="the only namespaces to serve, with Roles in each in place of a ClusterRole; "
        "ClusterServingRuntimes cannot be seen then, ServingRuntimes are; by default all namespaces",
    )
    group.add_argument(
        "--identity",
        default=environ.get("POD_NAME") or socket.gethostname(),
        help="the holder's name in the Lease; by default POD_NAME, or the host's name",
    )
    group.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write only while holding the Lease; without it, never run two",
    )
    group.add_argument("--lease-name", default="prism-operator", help="name of the Lease in the release's namespace")
    group.add_argument("--lease-seconds", type=_positive, default=15.0, help="how long a silent leader keeps the Lease")


def _add_connection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("API server")
    group.add_argument("--kubeconfig", help="a kubeconfig file; by default the pod's service account, then KUBECONFIG")
    group.add_argument("--context", help="the context in the kubeconfig file")
    group.add_argument(
        "--resync-seconds", type=_positive, default=600.0, help="lists everything again this often, whatever was heard"
    )
    group.add_argument(
        "--silence-seconds", type=_positive, default=90.0, help="a watch that says nothing for so long is begun again"
    )
    group.add_argument("--workers", type=_count, default=4, help="reconciliations at once")


def _add_ports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ports")
    group.add_argument("--host", default="0.0.0.0", help="address of the operator's own ports")
    group.add_argument("--metrics-port", type=_port, default=8080, help="GET /metrics; 0: any free one")
    group.add_argument("--probes-port", type=_port, default=8081, help="GET /healthz and /readyz; 0: any free one")
    group.add_argument("--admin-port", type=_port, default=8090, help="the predictors' admin port")
    group.add_argument(
        "--serving-ports",
        type=_ports,
        default=(8080,),
        metavar="P,Q",
        help="predictors' ports that the NetworkPolicy prism-admin leaves open to everybody; "
        "add 9081 where KServe's agent (logger, batcher) stands before them",
    )


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("behaviour")
    group.add_argument(
        "--ask-seconds", type=_positive, default=60.0, help="how often settled pods are asked; changed ones at once"
    )
    group.add_argument(
        "--nudge-pods",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="annotate pods after a change, so that the kubelet refreshes their settings within seconds; "
        "needs the verb patch on pods",
    )
    group.add_argument(
        "--network-policy",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="own a NetworkPolicy prism-admin in each namespace that has settings",
    )
    group.add_argument(
        "--disruption-budgets",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="own a PodDisruptionBudget for each service that may have more than one replica and has none of its own",
    )
    group.add_argument(
        "--operator-labels",
        type=_labels,
        default={LABEL_NAME: "prism", LABEL_COMPONENT: "operator"},
        metavar="K=V,K=V",
        help="labels of the operator's pods, by which the NetworkPolicy lets them in",
    )


def _own_namespace() -> str:
    try:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return ""


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _labels(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in _names(text)]
    if not pairs or any(not (key and equals) for key, equals, _ in pairs):
        raise argparse.ArgumentTypeError("must be key=value, several with commas")
    return {key: value for key, _, value in pairs}


def _ports(text: str) -> tuple[int, ...]:
    return tuple(_port(port) for port in _names(text))


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError("must be a port, 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be a whole number from 1")
    return int(text)


def _positive(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return seconds
