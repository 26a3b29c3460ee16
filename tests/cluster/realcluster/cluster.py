"""The whole cluster: control plane and one node, in namespaces of its own, and gone without a trace afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from realcluster.controlplane import ApiServer, Controllers, KubectlFailed, OnHost, Tools
from realcluster.dns import start_dns
from realcluster.images import Image
from realcluster.namespaces import HOST_INTERFACE, INSIDE_ADDRESS, Namespaces, wait_for
from realcluster.node import Node, pods_cgroups, programs_found, remove_cgroups
from realcluster.programs import KUBERNETES, CannotBuild, build


def tools() -> Tools:
    """etcd and the Kubernetes programs: of `KUBEBUILDER_ASSETS`, else built; `CannotBuild` says what is missing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / "kube-apiserver").exists() and (Path(assets) / "etcd").exists():
        return Tools(etcd=Path(assets) / "etcd", kubernetes=Path(assets))
    etcd = shutil.which("etcd")
    if etcd is None:
        raise CannotBuild("etcd is not on the PATH (Debian: apt-get install etcd-server), nor in KUBEBUILDER_ASSETS")
    return Tools(etcd=Path(etcd), kubernetes=build(KUBERNETES))


def missing_for_cluster() -> str | None:
    """What keeps a whole cluster from running here, as a sentence; None if nothing does."""
    if os.geteuid() != 0:
        return "a node needs root: it makes namespaces, cgroups and mounts"
    if missing := programs_found():
        return f"missing: {', '.join(missing)}; `make cluster-programs` installs them where apt-get is found"
    if not Path("/sys/fs/cgroup/memory").is_dir():
        return "the test cluster's node is made for cgroup v1, and this machine has v2 only"
    return None


class HostApiServer(ApiServer):
    """An API server without nodes, on free ports of this machine; needs no root."""

    def __init__(self, folder: Path) -> None:
        self._host = OnHost(folder)
        super().__init__(folder, tools(), self._host)

    def close(self) -> None:
        """Ends it and etcd."""
        self._host.close()


@dataclass
class Cluster:
    """A running cluster."""

    folder: Path
    tools: Tools
    namespaces: Namespaces = field(init=False)
    api_server: ApiServer = field(init=False)
    node: Node = field(init=False)
    started_within_s: float = 0.0

    def __post_init__(self) -> None:
        self.namespaces = Namespaces(self.folder)

    def start(self, images: Sequence[Image]) -> None:
        """Brings everything up; the images are known to the node."""
        began = time.monotonic()
        self.namespaces.open()
        self.api_server = ApiServer(self.folder, self.tools, self.namespaces, address=INSIDE_ADDRESS)
        self.node = Node(self.folder, self.api_server, self.namespaces)
        self.api_server.start()
        Controllers(self.api_server, self.namespaces).start()
        start_dns(self.api_server, self.namespaces)
        self.node.start([image.archive for image in images])
        wait_for("the default service account exists", self._has_default_account, seconds=30)
        self.started_within_s = time.monotonic() - began

    def close(self) -> None:
        """Ends everything and removes what it left in the cgroups; raises if anything is left even so."""
        self.namespaces.close()
        wait_for("the cgroups of the pods are gone", _cgroups_removed, seconds=20)
        if left := leftovers(self.folder):
            raise NotCleanedUp("; ".join(left))

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Runs kubectl as the administrator."""
        return self.api_server.kubectl(*arguments, **options)

    def apply(self, *documents: Any, **options: Any) -> str:
        """Applies documents as the administrator."""
        return self.api_server.apply(*documents, **options)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get … -o json` answers."""
        return self.api_server.get(*arguments)

    def apply_folder(self, folder: Path) -> None:
        """Applies every CRD of a folder and waits until all are served."""
        self.kubectl("apply", "--server-side", "-f", str(folder))
        documents = [one for path in folder.glob("*.yaml") for one in yaml.safe_load_all(path.read_text()) if one]
        names = [one["metadata"]["name"] for one in documents if one["kind"] == "CustomResourceDefinition"]
        if names:
            self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names))

    def wait_deleted(self, *what: str, seconds: float = 60) -> None:
        """Returns once `kubectl get` finds no such object any more."""
        wait_for(f"{' '.join(what)} is gone", lambda: not self._exists(*what), seconds=seconds, every=0.3)

    def describe_trouble(self) -> str:
        """What a person would look at first when a test has failed."""
        looks = [
            ("get", "pods", "-A", "-o", "wide"),
            ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        ]
        return "\n".join(self.kubectl(*look, check=False)[-6000:] for look in looks)

    def _has_default_account(self) -> bool:
        return self._exists("serviceaccount", "default", "-n", "default")

    def _exists(self, *what: str) -> bool:
        try:
            return bool(self.kubectl("get", *what, "--ignore-not-found", "-o", "name").strip())
        except KubectlFailed as error:
            return "doesn't have a resource type" not in str(error)


class NotCleanedUp(Exception):
    """The cluster has ended, and something of it is still there."""


def leftovers(folder: Path) -> list[str]:
    """What of a cluster with that folder is still on this machine: processes, mounts, cgroups, interfaces."""
    found = [f"cgroup {root}" for root in pods_cgroups()]
    if Path(f"/sys/class/net/{HOST_INTERFACE}").exists():
        found.append(f"interface {HOST_INTERFACE}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if str(folder) in line]
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in command.read_bytes() and int(command.parent.name) != os.getpid():
                found.append(f"process {command.parent.name}")
    return found


def _cgroups_removed() -> bool:
    try:
        remove_cgroups()
    except OSError:
        return False
    return True
