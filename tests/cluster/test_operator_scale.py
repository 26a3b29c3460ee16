"""Very many: 1,000 PrismConfigs and 5,000 InferenceServices in 50 namespaces. Prints what it measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from realcluster.cluster import HostApiServer
from realcluster.namespaces import wait_for
from realcluster.operator_process import OperatorProcess, Team, inference_service, operator

NAMESPACES, CONFIGS, SERVICES = 50, 20, 100
MOST_MEMORY_BYTES = 400 * 2**20
MOST_SECONDS_OF_THE_FIRST_PASS = 300.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def many(with_kinds: HostApiServer, tmp_path: Path) -> Iterator[HostApiServer]:
    """An API server that holds that many, spread evenly."""
    Team(with_kinds, tmp_path)  # brings the runtime
    names = [f"many-{number}" for number in range(NAMESPACES)]
    with with_kinds.http() as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: _fill(client, name), names))
        yield with_kinds
        list(pool.map(lambda name: _empty(client, name), names))


def _fill(client: httpx.Client, namespace: str) -> None:
    _create(client, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    configs = f"/apis/serving.prism.dev/v1alpha1/namespaces/{namespace}/prismconfigs"
    for number in range(CONFIGS):
        spec = {
            "selector": {"matchLabels": {"config": f"c{number}"}},
            "scheduler": {"coldLane": {"quota": number / 50}},
        }
        _create(client, configs, {"apiVersion": "serving.prism.dev/v1alpha1", "kind": "PrismConfig",
                                  "metadata": {"name": f"c{number}"}, "spec": spec})  # fmt: skip
    services = f"/apis/serving.kserve.io/v1beta1/namespaces/{namespace}/inferenceservices"
    for number in range(SERVICES):
        _create(client, services, inference_service(namespace, f"s{number}", {"config": f"c{number % CONFIGS}"}))


def _create(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    client.post(path, json=body).raise_for_status()


def _empty(client: httpx.Client, namespace: str) -> None:
    for path in ("serving.prism.dev/v1alpha1", "serving.kserve.io/v1beta1"):
        plural = "prismconfigs" if "prism" in path else "inferenceservices"
        client.delete(f"/apis/{path}/namespaces/{namespace}/{plural}")


def _ready_configs(server: HostApiServer) -> int:
    path = "{range .items[*]}{.status.conditions[?(@.type=='Ready')].reason}{'\\n'}{end}"
    return server.kubectl("get", "prismconfigs", "-A", "-o", f"jsonpath={path}").count("NoPods")


def _process(process: OperatorProcess) -> tuple[int, float]:
    """Resident bytes and CPU seconds so far."""
    fields = Path(f"/proc/{process.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[21]) * 4096, (int(fields[11]) + int(fields[12])) / 100


def test_a_thousand_configs_and_five_thousand_services(many: HostApiServer, tmp_path: Path) -> None:
    began = time.monotonic()
    with operator(many, tmp_path) as process:
        listed = time.monotonic() - began
        wait_for("all statuses are there", lambda: _ready_configs(many) == NAMESPACES * CONFIGS, seconds=900)
        passed = time.monotonic() - began
        memory, cpu = _process(process)
        position = many.audit_position()
        time.sleep(60)
        memory_after, cpu_after = _process(process)
        written = [one for one in many.writes("admin", after=position) if "/leases/" not in one["requestURI"]]
    print(
        f"\nlisted after {listed:.1f} s, first full pass after {passed:.1f} s ({cpu:.1f} s of CPU), "
        f"{memory / 2**20:.0f} MiB; a quiet minute: {cpu_after - cpu:.1f} s of CPU, {memory_after / 2**20:.0f} MiB, "
        f"{len(written)} writes"
    )
    assert written == []
    assert memory_after < MOST_MEMORY_BYTES
    assert passed < MOST_SECONDS_OF_THE_FIRST_PASS
