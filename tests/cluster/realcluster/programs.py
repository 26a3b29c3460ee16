"""The programs of the test cluster, built from Go modules with fixed sums and kept in a cache.

Each folder of `../programs` is a Go module of its own. What is built from it stands in
`$XDG_CACHE_HOME/prism/cluster/NAME-DIGEST/`, the digest being that of everything that decides the result, so a new
version is built beside an old one and two checkouts share what they have in common. Run as a program, this module
builds what is missing and prints the folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent.parent / "programs"
KUBERNETES_VERSION = "1.34.4"
HELM_VERSION = "3.22.0"


class CannotBuild(Exception):
    """A program cannot be built here; the message says what to install or set."""


def cache_folder() -> Path:
    """Where built programs and images are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prism" / "cluster"


@dataclass(frozen=True)
class Module:
    """A Go module and what is built from it."""

    name: str
    package: str
    """What `go build` is given: `.` for the module's own program, else an import path."""
    binary: str
    links: tuple[str, ...] = ()
    """Other names for the binary; it looks at its name to choose the program."""
    variables: tuple[tuple[str, str], ...] = ()
    """Go variables that the linker sets."""

    @property
    def folder(self) -> Path:
        """The module's sources."""
        return MODULES / self.name

    @property
    def linker_flags(self) -> str:
        """No symbol table, and the version that the program says it is."""
        return " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.variables)])

    def digest(self) -> str:
        """What decides the result: the sources, the sums, the flags and the compiler."""
        digest = hashlib.sha256(repr((self, go_version())).encode())
        for path in sorted(self.folder.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def built(self) -> Path:
        """The folder of the built program; it exists once it is complete."""
        return cache_folder() / f"{self.name}-{self.digest()}"


def _component_version(version: str, *packages: str) -> tuple[tuple[str, str], ...]:
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return tuple((f"{package}.{name}", value) for package in packages for name, value in values.items())


KUBERNETES = Module(
    "kubernetes",
    package=".",
    binary="kubernetes",
    links=("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    variables=_component_version(KUBERNETES_VERSION, "k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
)
HELM = Module(
    "helm",
    package="helm.sh/helm/v3/cmd/helm",
    binary="helm",
    variables=(
        ("helm.sh/helm/v3/internal/version.version", f"v{HELM_VERSION}"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", KUBERNETES_VERSION.split(".")[0]),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", KUBERNETES_VERSION.split(".")[1]),
    ),
)
COREDNS = Module("coredns", package=".", binary="coredns")
PAUSE = Module("pause", package=".", binary="pause")
JAEGER = Module("jaeger", package="github.com/jaegertracing/jaeger/cmd/jaeger", binary="jaeger")
MODULES_IN_ORDER = (PAUSE, HELM, KUBERNETES, COREDNS, JAEGER)


def go_version() -> str:
    """The Go compiler's version, or `CannotBuild` where there is none."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild("Go 1.26 or newer is not on the PATH; it builds Kubernetes, Helm and Jaeger for these tests")
    return subprocess.run([go, "env", "GOVERSION"], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def only_one(name: str) -> Iterator[None]:
    """Holds the lock of that name in the cache: of two processes that want the same thing, one makes it."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(module: Module) -> Path:
    """The folder that holds the module's program, built first if it is not in the cache."""
    built = module.built()
    if built.is_dir():
        return built
    with only_one(module.name):
        if not built.is_dir():
            _build_into(built, module)
    return built


def _build_into(built: Path, module: Module) -> None:
    unfinished = built.with_name(f".{built.name}.{os.getpid()}")
    # Whoever stops the build stops the compiler with it.
    bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    command = [*bound, "go", "build", "-p", "2", "-trimpath", "-buildvcs=false"]
    command += ["-ldflags", module.linker_flags, "-o", str(unfinished / module.binary), module.package]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": ""}
    done = subprocess.run(command, cwd=module.folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CannotBuild(f"{module.name} cannot be built: {done.stderr.strip()[-800:]}")
    for link in module.links:
        (unfinished / link).symlink_to(module.binary)
    unfinished.rename(built)


def main(names: list[str]) -> int:
    """Builds the named modules (all, if none is named) and prints their folders."""
    for module in MODULES_IN_ORDER:
        if not names or module.name in names:
            try:
                print(build(module), flush=True)
            except CannotBuild as why:
                print(f"PRISM: {why}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
