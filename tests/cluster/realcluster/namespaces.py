"""A network, mount and PID namespace of its own for everything that the cluster runs.

One process is the first in all three. Ending it ends every process in there with all their mounts and interfaces, and
it ends by itself when the process that made it does, however that ends. The host reaches the inside over one pair of
interfaces: tests talk to the API server, to services and to pods with ordinary clients.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NODE_ADDRESS = "10.250.0.1"
HOST_ADDRESS = "10.250.1.1"
INSIDE_ADDRESS = "10.250.1.2"
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
HOST_INTERFACE = "prism-test0"

_FIRST_PROCESS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("ready", flush=True)
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class DidNotHappen(Exception):
    """Something waited for did not come about; the message says what."""


def wait_for(what: str, holds: Callable[[], object], *, seconds: float, every: float = 0.1) -> None:
    """Returns once `holds()` is true, or raises `DidNotHappen` after that many seconds."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise DidNotHappen(f"{what}: not within {seconds:g} s")
        time.sleep(every)


@dataclass
class Program:
    """A running program of the cluster, with its log."""

    name: str
    command: list[str]
    log: Path
    launcher: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; its output goes on at the end of its log."""
        with self.log.open("ab") as log:
            self.launcher = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        """Its process as the host sees it."""
        assert self.launcher is not None, f"{self.name} was not started"
        if Path(self.command[0]).name != "nsenter":
            return self.launcher.pid
        children = Path(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children")
        wait_for(f"{self.name} starts", lambda: children.read_text().split(), seconds=5, every=0.01)
        return int(children.read_text().split()[0])

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.launcher is not None and self.launcher.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 20) -> None:
        """Ends it and waits until it has ended."""
        if not self.running:
            return
        assert self.launcher is not None
        self.send(number)
        try:
            self.launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.launcher.wait(5)

    def last_lines(self, count: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


@dataclass
class Namespaces:
    """The namespaces, made by `open()` and gone after `close()`."""

    folder: Path
    """Holds the logs."""
    programs: list[Program] = field(default_factory=list)
    _first: subprocess.Popen[str] | None = None
    _pid: int = 0

    def open(self) -> None:
        """Makes them and connects them with the host."""
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "-m", "-n", "-p", "-f", "--kill-child", "--mount-proc"]
        command += [sys.executable, "-I", "-S", "-c", _FIRST_PROCESS]
        with (self.folder / "namespaces.log").open("w") as log:
            self._first = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True
            )
        assert self._first.stdout is not None
        if self._first.stdout.readline() != "ready\n":
            why = (self.folder / "namespaces.log").read_text().strip()
            raise DidNotHappen(f"namespaces of its own cannot be made here, which needs root: {why}")
        self._pid = int(Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text())
        self._make_mounts()
        self._make_network()

    def close(self) -> None:
        """Ends everything in them."""
        for program in reversed(self.programs):
            if program.running and program.launcher is not None:
                program.launcher.kill()
                program.launcher.wait(5)
        if self._first is None:
            return
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        self._first.wait(20)
        assert self._first.stdout is not None
        self._first.stdout.close()
        subprocess.run(["ip", "link", "delete", HOST_INTERFACE], capture_output=True, check=False)
        self._first = None

    def inside(self, *command: str) -> list[str]:
        """The command line that runs a command in there."""
        return ["nsenter", "-t", str(self._pid), "-m", "-n", "-p", f"--wd={self.folder}", "--", *command]

    def run(self, *command: str, seconds: float = 60, check: bool = True) -> str:
        """Runs a command in there and returns what it wrote."""
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=seconds)
        if check and done.returncode != 0:
            raise DidNotHappen(f"{' '.join(command[:4])} failed: {done.stderr.strip()[-600:]}")
        return done.stdout

    def start(self, name: str, *command: str, environment: Mapping[str, str] | None = None) -> Program:
        """Starts a program in there, with a log of its name."""
        whole: Sequence[str] = command
        if environment:
            whole = ["env", *(f"{key}={value}" for key, value in environment.items()), *command]
        program = Program(name, self.inside(*whole), self.folder / f"{name}.log")
        program.start()
        self.programs.append(program)
        return program

    def _make_mounts(self) -> None:
        self.run("mount", "--make-rshared", "/")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        self.run("mkdir", "-p", "/run/netns", "/run/containerd", "/run/lock")

    def _make_network(self) -> None:
        ip = shutil.which("ip") or "/usr/sbin/ip"
        pair = [ip, "link", "add", HOST_INTERFACE, "type", "veth", "peer", "name", "host0", "netns", str(self._pid)]
        subprocess.run(pair, check=True, capture_output=True)
        for outside in (
            [ip, "address", "add", f"{HOST_ADDRESS}/24", "dev", HOST_INTERFACE],
            [ip, "link", "set", HOST_INTERFACE, "up"],
        ):
            subprocess.run(outside, check=True, capture_output=True)
        for line in (
            "link set lo up",
            f"address add {INSIDE_ADDRESS}/24 dev host0",
            "link set host0 up",
            "link add node0 type bridge",
            f"address add {NODE_ADDRESS}/24 dev node0",
            "link set node0 up",
            f"route add {SERVICES} dev node0",
        ):
            self.run(ip, *line.split())
        self.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        for network in (PODS, SERVICES, f"{NODE_ADDRESS}/32"):
            subprocess.run([ip, "route", "add", network, "via", INSIDE_ADDRESS], check=True, capture_output=True)
