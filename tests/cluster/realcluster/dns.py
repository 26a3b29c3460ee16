"""The cluster's names: CoreDNS on the node, as the Service that pods are told to ask."""

from __future__ import annotations

from typing import Any

from realcluster.controlplane import ApiServer
from realcluster.namespaces import NODE_ADDRESS, Namespaces, Program
from realcluster.node import DNS_ADDRESS
from realcluster.programs import COREDNS, build

_NAME = {"name": "kube-dns", "namespace": "kube-system"}
_PORTS = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]


def _documents() -> list[dict[str, Any]]:
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": _NAME,
        "subsets": [{"addresses": [{"ip": NODE_ADDRESS}], "ports": _PORTS}],
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _NAME,
        "spec": {"clusterIP": DNS_ADDRESS, "ports": _PORTS},
    }
    return [service, endpoints]


def start_dns(api_server: ApiServer, namespaces: Namespaces) -> Program:
    """Starts CoreDNS and makes it the cluster's DNS."""
    configuration = f"""
.:53 {{
  bind {NODE_ADDRESS}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {api_server.authority.kubeconfig("coredns", api_server.local_url, api_server.admin)} test
  }}
}}
"""
    path = api_server.folder / "Corefile"
    path.write_text(configuration)
    api_server.apply(*_documents())
    return namespaces.start("coredns", str(build(COREDNS) / "coredns"), "-conf", str(path))
