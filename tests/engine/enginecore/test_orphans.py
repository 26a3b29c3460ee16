"""An engine whose serving process was killed does not stay behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

FAMILY = """
import multiprocessing, os, time
from prism.engine.enginecore.sender import FactSender, HeartbeatThread

def engine():
    HeartbeatThread(FactSender(None, 0), lambda: None, time.monotonic, every_seconds=0.05).start()
    print(os.getpid(), flush=True)
    time.sleep(120)

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=engine).start()
    time.sleep(120)
"""


def test_an_orphaned_engine_ends_itself(tmp_path: Path, repository: Path) -> None:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)
    environ = {"PYTHONPATH": str(repository / "service")}
    server = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environ)
    assert server.stdout is not None
    engine = psutil.Process(int(server.stdout.readline()))
    time.sleep(0.3)
    assert engine.is_running()
    server.kill()
    server.wait()
    server.stdout.close()
    limit = time.monotonic() + 10
    while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit
        time.sleep(0.05)
