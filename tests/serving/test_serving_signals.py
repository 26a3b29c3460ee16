"""Process 1 of a container reaps the orphans it is handed, and leaves others' children to them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from prism.serving.signals import reap_once

ORPHAN = """
import os, subprocess, sys, time
sys.path.insert(0, "service")
from prism.serving.signals import reap_once
# A shell that leaves its child behind: process 1 inherits it, and it ends soon after.
subprocess.run(["sh", "-c", "sleep 0.2 & exit 0"], check=True)
time.sleep(0.5)
zombies = lambda: [p for p in os.listdir("/proc") if p.isdigit() and " Z " in open(f"/proc/{p}/stat").read()]
before, seen = zombies(), set()
reap_once(seen)
reap_once(seen)
print(len(before), len(zombies()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a process namespace needs root")
def test_orphans_are_reaped_as_process_one(repository: object) -> None:
    argv = ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", ORPHAN]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=str(repository))
    assert ran.stdout.split()[-2:] == ["1", "0"]


def test_a_child_that_is_waited_for_at_once_keeps_its_status() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    reap_once(set())
    assert child.wait() == 7
