"""One real node: containerd, the kubelet and kube-proxy, in the cluster's own namespaces."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from realcluster.controlplane import ApiServer
from realcluster.images import PAUSE_IMAGE
from realcluster.namespaces import NODE_ADDRESS, PODS, Namespaces, Program, wait_for

NODE = "node1"
DNS_ADDRESS = "10.96.0.10"
HIERARCHIES = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
CGROUPS = Path("/sys/fs/cgroup")
CGROUP = "prism-test-cluster"


def _toml(folder: Path) -> str:
    return f"""
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"""


def _cni(folder: Path) -> dict[str, Any]:
    ranges = [[{"subnet": PODS.replace("/16", "/24")}]]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{folder}/cni-addresses",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    mapping = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, mapping]}


def _kubelet(folder: Path, authority: Path, sync_period: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "resolvConf": "",
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "syncFrequency": sync_period,
        "nodeStatusUpdateFrequency": "5s",
        "podLogsDir": f"{folder}/pods",
        "volumePluginDir": f"{folder}/volume-plugins",
        "readOnlyPort": 0,
    }


def _proxy(kubeconfig: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": PODS,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
        # Neither may be set from within a network namespace here.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "0s"},
    }


@dataclass
class Node:
    """The node that runs the pods."""

    folder: Path
    api_server: ApiServer
    namespaces: Namespaces
    sync_period: str = "5s"
    """How often the kubelet looks at its pods' volumes; Kubernetes' default is 1m."""
    containerd: Program = field(init=False)
    kubelet: Program = field(init=False)
    proxy: Program = field(init=False)

    def start(self, archives: list[Path]) -> None:
        """Starts containerd, brings the images in, then the kubelet and kube-proxy; waits until the node is ready."""
        make_cgroups()
        self._write_configuration()
        self.containerd = self.namespaces.start("containerd", "containerd", "-c", str(self.folder / "containerd.toml"))
        wait_for("containerd answers", self._containerd_answers, seconds=30)
        for archive in archives:
            self.import_image(archive)
        kubernetes = self.api_server.tools.kubernetes
        self.proxy = self.namespaces.start(
            "kube-proxy",
            str(kubernetes / "kube-proxy"),
            f"--config={self.folder}/proxy.yaml",
            f"--hostname-override={NODE}",
        )
        self.kubelet = self.namespaces.start("kubelet", *self._kubelet_command())
        wait_for("the node is ready", self._ready, seconds=60, every=0.25)

    def import_image(self, archive: Path) -> None:
        """Makes an image archive known to containerd under the names in it."""
        self.ctr("images", "import", str(archive), seconds=600)

    def ctr(self, *arguments: str, seconds: float = 60) -> str:
        """containerd's own command, in the kubelet's namespace of images."""
        return self.namespaces.run(
            "ctr", "-a", f"{self.folder}/containerd.sock", "-n", "k8s.io", *arguments, seconds=seconds
        )

    def set_sync_period(self, period: str) -> None:
        """Restarts the kubelet with another sync period; pods go on running."""
        self.sync_period = period
        self._write_kubelet_configuration()
        self.kubelet.stop()
        self.kubelet.start()
        wait_for("the node is ready", self._ready, seconds=60, every=0.25)

    @contextmanager
    def cut_off(self, pod: Mapping[str, Any], address: str) -> Iterator[None]:
        """Lets no packet of a pod get to an address while the block runs."""
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        tasks = [line.split() for line in self.ctr("tasks", "ls").splitlines()]
        (process,) = [task[1] for task in tasks if task[0] == container]
        route = ["nsenter", "-t", process, "-n", "ip", "route"]
        self.namespaces.run(*route, "add", "blackhole", address)
        try:
            yield
        finally:
            self.namespaces.run(*route, "delete", "blackhole", address)

    def _containerd_answers(self) -> bool:
        if not self.containerd.running:
            raise RuntimeError(f"containerd ended:\n{self.containerd.last_lines()}")
        command = self.namespaces.inside("ctr", "-a", f"{self.folder}/containerd.sock", "version")
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _ready(self) -> bool:
        if not self.kubelet.running:
            raise RuntimeError(f"the kubelet ended:\n{self.kubelet.last_lines()}")
        with self.api_server.http() as client:
            answer = client.get(f"/api/v1/nodes/{NODE}")
        conditions = answer.json().get("status", {}).get("conditions", []) if answer.status_code == 200 else []
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def _kubelet_command(self) -> list[str]:
        authority, server = self.api_server.authority, self.api_server
        client = authority.client("kubelet", f"system:node:{NODE}", "system:nodes")
        config = authority.kubeconfig("kubelet", server.local_url, client)
        options = {
            "config": f"{self.folder}/kubelet.yaml",
            "kubeconfig": str(config),
            "root-dir": f"{self.folder}/kubelet",
            "cert-dir": f"{self.folder}/kubelet/pki",
            "hostname-override": NODE,
            "node-ip": NODE_ADDRESS,
        }
        return [str(server.tools.kubernetes / "kubelet"), *(f"--{name}={value}" for name, value in options.items())]

    def _write_configuration(self) -> None:
        authority, server = self.api_server.authority, self.api_server
        (self.folder / "containerd.toml").write_text(_toml(self.folder))
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(_cni(self.folder)))
        self._write_kubelet_configuration()
        config = authority.kubeconfig(
            "kube-proxy", server.local_url, authority.client("kube-proxy", "system:kube-proxy")
        )
        # Written once: kube-proxy ends when its file is touched.
        (self.folder / "proxy.yaml").write_text(yaml.safe_dump(_proxy(config)))

    def _write_kubelet_configuration(self) -> None:
        kubelet = _kubelet(self.folder, self.api_server.authority.own.certificate, self.sync_period)
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))


def make_cgroups() -> None:
    """The root of the pods' cgroups in every hierarchy of cgroup v1."""
    for hierarchy in HIERARCHIES:
        (CGROUPS / hierarchy / CGROUP).mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        (CGROUPS / "cpuset" / CGROUP / file).write_text((CGROUPS / "cpuset" / file).read_text())


def pods_cgroups() -> list[Path]:
    """The roots of the pods' cgroups that exist; runc makes one in the unified hierarchy too where there is one."""
    return [root for hierarchy in sorted(CGROUPS.iterdir()) if (root := hierarchy / CGROUP).is_dir()]


def remove_cgroups() -> None:
    """Takes them away again; nothing may run in them any more."""
    for root in pods_cgroups():
        for folder in sorted((path for path in root.rglob("*") if path.is_dir()), key=lambda p: -len(p.parts)):
            folder.rmdir()
        root.rmdir()


def programs_found() -> list[str]:
    """Which of the Debian programs that a node needs are missing."""
    wanted = ("containerd", "runc", "iptables", "conntrack", "ip", "nsenter", "unshare", "setpriv")
    missing = [name for name in wanted if shutil.which(name) is None]
    return missing + ([] if Path("/usr/lib/cni/bridge").exists() else ["containernetworking-plugins"])
