"""The Grafana dashboard: Grafana's own types take it, and Prometheus takes each of its queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from prism.telemetry import metrics
from prism_chart.dashboard import FILE
from prism_chart.values import CHART

BOARD: dict[str, Any] = json.loads((CHART / FILE).read_text())
_NAME = re.compile(r"\bprism_[a-z0-9_]+")
_SUFFIXES = ("_bucket", "_sum", "_count")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])


def known_metrics() -> set[str]:
    """The names that stand in `prism.telemetry.metrics`."""
    names = {value for value in vars(metrics).values() if isinstance(value, str) and value.startswith("prism_")}
    return names | {f"{name}{suffix}" for name in names if name.endswith("_seconds") for suffix in _SUFFIXES}


def test_grafana_s_own_types_read_it_and_write_it_back() -> None:
    register_default_plugins()
    read = Dashboard.from_json(BOARD)
    assert json.loads(JSONEncoder().encode(read)) == BOARD


def test_every_query_uses_only_metrics_that_prism_has() -> None:
    used = {name for query in queries() for name in _NAME.findall(query)}
    assert used
    assert used <= known_metrics()


def test_every_metric_that_prism_has_is_looked_at() -> None:
    everywhere = " ".join(queries())
    # How many arrived and are open is what the ended ones say in another way.
    left_out = {metrics.ARRIVED_REQUESTS, metrics.OPEN_REQUESTS}
    names = {name for name in known_metrics() if not name.endswith(_SUFFIXES)} - left_out
    assert {name for name in names if name not in everywhere} == set()


def test_what_the_parts_of_ttft_are_is_said_on_their_panels() -> None:
    titles = {panel["title"]: panel["description"] for panel in panels()}
    for part in metrics.PARTS:
        assert titles[f"{part.replace('_', ' ').capitalize()} by lane"]


def test_no_two_panels_share_a_number() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: install the package prometheus")
    # Grafana fills its variables in before it asks.
    filled = [query.replace("$__rate_interval", "1m").replace("$__range", "1h") for query in queries()]
    rules = [{"record": f"panel:query:{number}", "expr": query} for number, query in enumerate(filled)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
