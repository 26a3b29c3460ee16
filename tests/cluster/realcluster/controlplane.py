"""etcd and the API server, and the controllers and scheduler that make a whole control plane of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import yaml

from realcluster.certificates import Authority, KeyPair
from realcluster.namespaces import HOST_ADDRESS, INSIDE_ADDRESS, NODE_ADDRESS, PODS, SERVICES, Program, wait_for

FIRST_SERVICE = "10.96.0.1"
_NAMES = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1", FIRST_SERVICE]
_WRITES_ARE_LOGGED = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]}],
}


class Starter(Protocol):
    """Where programs run: on the host, or in the cluster's own namespaces."""

    def start(self, name: str, *command: str) -> Program:
        """Starts a program with a log of its name."""


@dataclass
class OnHost:
    """Runs programs on the host itself; enough for an API server without nodes."""

    folder: Path
    programs: list[Program] = field(default_factory=list)

    def start(self, name: str, *command: str) -> Program:
        """Starts a program with a log of its name; it ends with this process."""
        pinned = ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else list(command)
        program = Program(name, pinned, self.folder / f"{name}.log")
        program.start()
        self.programs.append(program)
        return program

    def close(self) -> None:
        """Ends all of them, the last first."""
        for program in reversed(self.programs):
            program.stop()


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass(frozen=True)
class Tools:
    """Where the programs are found."""

    etcd: Path
    kubernetes: Path
    """A folder with kube-apiserver and kubectl in it, at least."""


class ApiServer:
    """A real kube-apiserver on a real etcd, with an administrator's kubeconfig."""

    def __init__(self, folder: Path, tools: Tools, starter: Starter, *, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.tools = tools
        self.authority = Authority(folder / "certificates")
        self.etcd: Program
        self.program: Program
        self._starter = starter
        self._etcd_port, self._etcd_peer_port, port = free_port(), free_port(), free_port()
        self.url = f"https://{address}:{port}"
        """Where the tests reach it."""
        self.local_url = f"https://127.0.0.1:{port}"
        """Where the programs beside it reach it."""
        self._port = port
        self.admin = self.authority.client("admin", "admin", "system:masters")
        self.kubeconfig = self.authority.kubeconfig("admin", self.url, self.admin)
        self.service_account_keys = self.authority.service_account_keys()
        self.audit_log = folder / "audit.log"

    def start(self) -> None:
        """Starts both and waits until the API is served."""
        self.etcd = self._starter.start("etcd", *self._etcd_command())
        self.program = self._starter.start("kube-apiserver", *self._command())
        self.wait_ready()

    def wait_ready(self, seconds: float = 60) -> None:
        """Returns once the API server says that it is ready."""
        wait_for("the API server is ready", self._ready, seconds=seconds)

    def restart(self) -> None:
        """Ends the API server and starts it again on the same data."""
        self.program.stop()
        self.program.start()
        self.wait_ready()

    def compact(self) -> None:
        """Has etcd forget every version but the present one, as the API server itself does every five minutes."""
        here = f"http://127.0.0.1:{self._etcd_port}/v3/kv"
        key = base64.b64encode(b"/").decode()
        answer = json.loads(self._ask_etcd(f"{here}/range", {"key": key, "limit": 1}))
        self._ask_etcd(f"{here}/compaction", {"revision": answer["header"]["revision"], "physical": True})

    def _ask_etcd(self, url: str, body: dict[str, Any]) -> str:
        command = [
            "nsenter",
            "-t",
            str(self.etcd.pid),
            "-n",
            "curl",
            "-sS",
            "--noproxy",
            "*",
            "-d",
            json.dumps(body),
            url,
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    def client_for(self, name: str, user: str, group: str | None = None) -> Path:
        """The kubeconfig of another user."""
        return self.authority.kubeconfig(name, self.url, self.authority.client(name, user, group))

    def http(self, *, timeout: float = 30) -> httpx.Client:
        """An HTTP client with the administrator's certificate."""
        context = ssl.create_default_context(cafile=str(self.authority.own.certificate))
        context.load_cert_chain(str(self.admin.certificate), str(self.admin.key))
        return httpx.Client(base_url=self.url, verify=context, timeout=timeout, trust_env=False)

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = 120) -> str:
        """Runs kubectl as the administrator and returns what it wrote."""
        command = [str(self.tools.kubernetes / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        environment = {**os.environ, "HOME": str(self.folder)}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
        if check and done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-1500:]}")
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def get(self, *arguments: str) -> Any:
        """What `kubectl get … -o json` answers."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, *documents: Any, namespace: str | None = None, **options: Any) -> str:
        """Applies documents as `kubectl apply -f -` does."""
        where = ["-n", namespace] if namespace else []
        return self.kubectl("apply", *where, "-f", "-", stdin=yaml.safe_dump_all(documents), **options)

    def writes(self, user: str, *, after: int = 0) -> list[dict[str, Any]]:
        """The write requests that a user has made, out of the audit log from that byte on."""
        with self.audit_log.open("rb") as log:
            log.seek(after)
            events = [json.loads(line) for line in log if line.endswith(b"\n")]
        return [event for event in events if event["user"]["username"] == user]

    def audit_position(self) -> int:
        """Where the audit log ends now."""
        return self.audit_log.stat().st_size

    def _ready(self) -> bool:
        if not self.program.running:
            raise RuntimeError(f"kube-apiserver ended:\n{self.program.last_lines()}")
        try:
            with self.http(timeout=2) as client:
                return client.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def _etcd_command(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._etcd_peer_port}"
        options = {
            "name": "one",
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"one={peer}",
            "log-level": "warn",
            "unsafe-no-fsync": "true",
        }
        return [str(self.tools.etcd), *(f"--{name}={value}" for name, value in options.items())]

    def _command(self) -> list[str]:
        keys, authority = self.service_account_keys, self.authority
        hosts = [*_NAMES, NODE_ADDRESS, HOST_ADDRESS, INSIDE_ADDRESS]
        serving = authority.server("kube-apiserver", hosts)
        to_kubelet = authority.client("kube-apiserver-to-kubelet", "kube-apiserver-to-kubelet", "system:masters")
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(_WRITES_ARE_LOGGED))
        options = {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": "0.0.0.0",
            "secure-port": str(self._port),
            "advertise-address": NODE_ADDRESS if self.url != self.local_url else "127.0.0.1",
            "endpoint-reconciler-type": "lease" if self.url != self.local_url else "none",
            "tls-cert-file": str(serving.certificate),
            "tls-private-key-file": str(serving.key),
            "client-ca-file": str(authority.own.certificate),
            "service-account-key-file": str(keys.certificate),
            "service-account-signing-key-file": str(keys.key),
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": SERVICES,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "anonymous-auth": "false",
            "allow-privileged": "true",
            "kubelet-client-certificate": str(to_kubelet.certificate),
            "kubelet-client-key": str(to_kubelet.key),
            "kubelet-preferred-address-types": "InternalIP",
            "audit-policy-file": str(policy),
            "audit-log-path": str(self.audit_log),
            "cert-dir": str(self.folder / "kube-apiserver"),
            "v": "1",
        }
        return [
            str(self.tools.kubernetes / "kube-apiserver"),
            *(f"--{name}={value}" for name, value in options.items()),
        ]


class KubectlFailed(Exception):
    """kubectl did not do what it was asked; the message says what it said."""


@dataclass
class Controllers:
    """kube-controller-manager and kube-scheduler beside an API server."""

    api_server: ApiServer
    starter: Starter

    def start(self) -> None:
        """Starts both."""
        kubernetes, authority, server = self.api_server.tools.kubernetes, self.api_server.authority, self.api_server
        for program, user in (
            ("kube-controller-manager", "system:kube-controller-manager"),
            ("kube-scheduler", "system:kube-scheduler"),
        ):
            config = str(authority.kubeconfig(program, server.local_url, authority.client(program, user)))
            options = {
                "kubeconfig": config,
                "authentication-kubeconfig": config,
                "authorization-kubeconfig": config,
                "leader-elect": "false",
                "bind-address": "127.0.0.1",
                "cert-dir": str(server.folder / program),
            }
            if program == "kube-controller-manager":
                options |= self._manager_options(authority.own)
            self.starter.start(program, str(kubernetes / program), *(f"--{k}={v}" for k, v in options.items()))

    def _manager_options(self, own: KeyPair) -> dict[str, str]:
        return {
            "service-account-private-key-file": str(self.api_server.service_account_keys.key),
            "root-ca-file": str(own.certificate),
            "use-service-account-credentials": "true",
            "cluster-cidr": PODS,
            "service-cluster-ip-range": SERVICES,
            "cluster-signing-cert-file": str(own.certificate),
            "cluster-signing-key-file": str(own.key),
            "namespace-sync-period": "5s",
        }


def temporary_folder(name: str) -> Iterator[Path]:
    """A short folder (paths of sockets are bounded), removed afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"prism-{name}-") as folder:
        yield Path(folder)
