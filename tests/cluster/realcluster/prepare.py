"""Makes ready what the cluster tests run: Debian's programs, the Go programs, the images.

    PYTHONPATH=tests/cluster python3 -m realcluster.prepare

Needs nothing but Python, so that it can run beside everything else from the start. What is ready stays ready: a second
run takes a second. The first takes about 25 minutes of one processor, nearly all of it compiling.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from realcluster.images import Images
from realcluster.programs import MODULES_IN_ORDER, CannotBuild, build

PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "promtool": "prometheus",
}
"""What is looked for, and the Debian package that brings it."""


def missing_packages() -> list[str]:
    """Debian packages whose program is not found here."""
    return [package for program, package in PACKAGES.items() if shutil.which(program) is None]


def install_packages() -> None:
    """Installs what is missing, where apt-get is found and this is root; says what to install elsewhere."""
    missing = missing_packages()
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CannotBuild(f"install {', '.join(missing)} (Debian's names), or run this as root on Debian")
    # Services that a package would start are of no use here: the tests start their own.
    policy = Path("/usr/sbin/policy-rc.d")
    made = not policy.exists()
    if made:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        for command in (["apt-get", "update", "-qq"], install):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise CannotBuild(f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}")
    finally:
        if made:
            policy.unlink()


def main() -> int:
    """Does every step, says what it took, and goes on after one that cannot be done."""
    images, failed = Images(), 0
    steps: list[tuple[str, Callable[[], object]]] = [("Debian's packages", install_packages)]
    steps += [(module.name, lambda module=module: build(module)) for module in MODULES_IN_ORDER]  # type: ignore[misc]
    for name in ("base", "pause", "operator", "predictor", "jaeger"):
        steps.append((f"{name} image", getattr(images, name)))
    for name, make in steps:
        began = time.monotonic()
        try:
            make()
        except CannotBuild as why:
            print(f"PRISM: {name}: {why}", file=sys.stderr, flush=True)
            failed += 1
        else:
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
