"""An API server without nodes that knows all kinds, and namespaces in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from prism.config.crd import custom_resource_definition
from realcluster.cluster import HostApiServer
from realcluster.namespaces import wait_for
from realcluster.operator_process import RELEASE, Team


@pytest.fixture(scope="session")
def with_kinds(api_server: HostApiServer, kserve_crds: Path) -> HostApiServer:
    """The API server with KServe's CRDs and PrismConfig's."""
    apply = ("apply", "--server-side", "--force-conflicts", "-f")
    api_server.kubectl(*apply, str(kserve_crds))
    api_server.kubectl(*apply, "-", stdin=json.dumps(custom_resource_definition()))
    wait_for("all kinds are served", lambda: _established(api_server), seconds=60)
    api_server.kubectl("create", "namespace", RELEASE, check=False)
    return api_server


def _established(server: HostApiServer) -> bool:
    found = server.get("crds")["items"]
    conditions = [one.get("status", {}).get("conditions") or [] for one in found]
    return all(any(one["type"] == "Established" and one["status"] == "True" for one in each) for each in conditions)


@pytest.fixture
def team(with_kinds: HostApiServer, tmp_path: Path) -> Iterator[Team]:
    """A namespace of the test's own."""
    made = Team(with_kinds, tmp_path)
    yield made
    made.close()
