"""The alerts, as Helm renders them, on series that a Prometheus would have scraped: promtool evaluates them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prism.telemetry import metrics

Manifest = dict[str, Any]
Series = dict[str, str]
Complaint = Callable[[str, Series, Manifest | None], str]

POD = {"namespace": "team-a", "pod": "rag-0", "model_name": "rag"}
AT = "45m"


def series(name: str, values: str, **labels: str) -> Series:
    """One series of the pod, in promtool's notation, a value every 30 s."""
    inside = ", ".join(f'{key}="{value}"' for key, value in {**POD, **labels}.items())
    return {f"{name}{{{inside}}}": values}


def waits(seconds: float) -> Series:
    """Ten requests a second for an hour, each of which waited so long for admission."""
    made: Series = {}
    for bound in (*metrics.SECONDS_BUCKETS, float("inf")):
        le = "+Inf" if bound == float("inf") else str(bound)
        values = "0+300x120" if bound >= seconds else "0x120"
        made |= series(f"{metrics.TTFT_PART}_bucket", values, part="admission_wait", lane="hot", le=le)
    return made


def unready(image: str) -> Series:
    container = {"container": "kserve-container"}
    status = series("kube_pod_container_status_ready", "0x120", **container)
    return status | series("kube_pod_container_info", "1x120", image=image, **container)


FIRES: list[tuple[str, Series, Manifest, str]] = [
    (
        "PrismAdmissionWaitHigh",
        waits(7.9),
        {"namespace": "team-a", "model_name": "rag", "severity": "warning"},
        "Requests for rag wait 7.983s (P99) for admission",
    ),
    (
        "PrismColdLaneBoundBroken",
        series(metrics.COLD_LANE_OVERTAKES, "10x120"),
        {**POD, "severity": "warning"},
        "The oldest request for rag was overtaken 10 times in a row",
    ),
    (
        "PrismSettingsRefused",
        series(metrics.SETTINGS_REFUSALS, "0x85 1x35", reason="invalid_value"),
        {**POD, "reason": "invalid_value", "severity": "warning"},
        "A predictor of rag refused its settings: invalid_value",
    ),
    (
        "PrismSpansDropped",
        series(metrics.SPANS, "0+3x120", result="dropped"),
        {**POD, "severity": "info"},
        "Traces of rag are being lost",
    ),
    (
        "PrismEngineNotReady",
        series(metrics.REFUSED_REQUESTS, "0x85 4x35", reason="engine_dead"),
        {**POD, "reason": "engine_dead", "severity": "critical"},
        "A predictor of rag refuses requests, since its engine is dead or hung",
    ),
    (
        "PrismEngineNotReady",
        series(metrics.REFUSED_REQUESTS, "0x85 4x35", reason="engine_hung"),
        {**POD, "reason": "engine_hung", "severity": "critical"},
        "A predictor of rag refuses requests, since its engine is dead or hung",
    ),
    (
        "PrismPredictorNotReady",
        unready("registry.example.com/prism-predictor:0.1.0"),
        {"namespace": "team-a", "pod": "rag-0", "severity": "warning"},
        "Predictor rag-0 has not been ready for half an hour",
    ),
]
SILENT: list[tuple[str, Series]] = [
    ("PrismAdmissionWaitHigh", waits(1.9)),
    ("PrismColdLaneBoundBroken", series(metrics.COLD_LANE_OVERTAKES, "9x120")),
    ("PrismSettingsRefused", series(metrics.SETTINGS_REFUSALS, "2x120", reason="invalid_value")),
    ("PrismSpansDropped", series(metrics.SPANS, "0+3x120", result="exported")),
    ("PrismSpansDropped", series(metrics.SPANS, "7x120", result="failed")),
    ("PrismEngineNotReady", series(metrics.REFUSED_REQUESTS, "0+4x120", reason="queue_full")),
    ("PrismPredictorNotReady", unready("kserve/huggingfaceserver:latest")),
]


@pytest.fixture(scope="module")
def rules(render: Callable[..., list[Manifest]]) -> list[Manifest]:
    manifests = render(values={"monitoring": {"rules": {"enabled": True, "labels": {"team": "serving"}}}})
    (found,) = (one for one in manifests if one["kind"] == "PrometheusRule")
    (group,) = found["spec"]["groups"]
    return list(group["rules"])


@pytest.fixture
def evaluate(rules: list[Manifest], tmp_path: Path) -> Complaint:
    """Has promtool say whether an alert is what was expected of it on given series; empty if it is."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: install the package prometheus")

    def complaint(alert: str, given: Series, expected: Manifest | None) -> str:
        (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "prism", "rules": rules}]}))
        wanted = {"eval_time": AT, "alertname": alert, "exp_alerts": [] if expected is None else [expected]}
        inputs = [{"series": name, "values": values} for name, values in given.items()]
        one = {"interval": "30s", "input_series": inputs, "alert_rule_test": [wanted]}
        test = {"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": [one]}
        (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
        command = [promtool, "test", "rules", "test.yaml"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr if done.returncode else ""

    return complaint


@pytest.mark.parametrize(("alert", "given", "labels", "summary"), FIRES, ids=[one[0] for one in FIRES])
def test_alert_fires_and_says_what_is_wrong(
    rules: list[Manifest], evaluate: Complaint, alert: str, given: Series, labels: Manifest, summary: str
) -> None:
    (rule,) = (one for one in rules if one["alert"] == alert)
    said = {"summary": summary, "description": rule["annotations"]["description"]}
    assert evaluate(alert, given, {"exp_labels": {**labels, "team": "serving"}, "exp_annotations": said}) == ""


@pytest.mark.parametrize(("alert", "given"), SILENT)
def test_alert_stays_silent(evaluate: Complaint, alert: str, given: Series) -> None:
    assert evaluate(alert, given, None) == ""


def test_every_alert_is_tried_both_ways(rules: list[Manifest]) -> None:
    assert {one["alert"] for one in rules} == {one[0] for one in FIRES} == {one[0] for one in SILENT}


def test_rules_use_only_metrics_that_prism_or_kubernetes_has(rules: list[Manifest]) -> None:
    known = {value for value in vars(metrics).values() if isinstance(value, str)}
    used = {name for rule in rules for name in re.findall(r"\bprism_[a-z0-9_]+", rule["expr"])}
    assert {name.removesuffix("_bucket") for name in used} <= known


def test_threshold_is_a_value(render: Callable[..., list[Manifest]]) -> None:
    manifests = render("--set", "monitoring.rules.enabled=true,monitoring.rules.admissionWaitSeconds=0.5")
    (found,) = (one for one in manifests if one["kind"] == "PrometheusRule")
    assert "> 0.5" in found["spec"]["groups"][0]["rules"][0]["expr"]
