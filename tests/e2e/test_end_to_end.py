"""Day one: an InferenceService is applied, asked, traced, tuned, rolled, broken and taken away; in this order."""

from __future__ import annotations

import itertools
import time

import httpx
import pytest

from prism.telemetry import metrics, names
from realcluster.cluster import Cluster
from realcluster.installation import Installation
from realcluster.jaeger import Jaeger, Span
from realcluster.namespaces import wait_for
from realcluster.predictors import Predictor
from realcluster.settings import prism_config
from realcluster.traffic import Traffic, agent_turns, rag_question

PARTS = (names.ADMISSION_WAIT, names.PREFILL, names.FIRST_TOKEN)


def _named(spans: list[Span], name: str) -> Span:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, f"{len(found)} spans {name} in {[span.name for span in spans]}"
    return found[0]


def _applied(predictor: Predictor) -> str:
    status = predictor.cluster.get("prismconfig", "rag", "-n", predictor.namespace).get("status", {})
    found: str = status.get("applied", "")
    return found


def _generation(predictor: Predictor) -> int:
    found: int = predictor.cluster.get("prismconfig", "rag", "-n", predictor.namespace)["metadata"]["generation"]
    return found


def test_a_question_is_answered(traffic: Traffic) -> None:
    answer = traffic.ask([{"role": "user", "content": "What is the capital of France?"}], max_tokens=16)
    assert answer.text.strip()


def test_every_request_leaves_one_trace_whose_three_parts_are_its_ttft(jaeger: Jaeger, traffic: Traffic) -> None:
    for number in range(8):
        traffic.ask(rag_question(number), reorder=True)
    for messages in agent_turns(3):
        traffic.ask(messages)
    for answer in traffic.answered:
        spans = jaeger.trace(answer.trace_id)
        roots = [span for span in spans if span.parent not in {one.id for one in spans}]
        assert len(roots) == 1
        parts = [_named(spans, part) for part in PARTS]
        ttft = next(span.tags[names.TTFT] for span in spans if names.TTFT in span.tags)
        assert sum(part.seconds for part in parts) == pytest.approx(ttft, abs=0.005)
        for earlier, later in itertools.pairwise(parts):
            assert earlier.ends == pytest.approx(later.starts, abs=0.001)


def test_jaeger_has_nothing_to_say_against_the_spans(jaeger: Jaeger, traffic: Traffic) -> None:
    answer = traffic.ask(rag_question(3))
    spans = jaeger.trace(answer.trace_id)
    by_id = {span.id: span for span in spans}
    for span in spans:
        if parent := by_id.get(span.parent or ""):
            assert parent.starts - 1e-6 <= span.starts
            assert span.ends <= parent.ends + 1e-6


def test_the_client_is_told_what_its_trace_says(jaeger: Jaeger, traffic: Traffic) -> None:
    answer = traffic.ask(rag_question(4), reorder=True)
    spans = jaeger.trace(answer.trace_id)
    for key, name in (("admission_wait", PARTS[0]), ("prefill", PARTS[1]), ("first_token", PARTS[2])):
        assert answer.prism["ttft"][key] == pytest.approx(_named(spans, name).seconds, abs=0.005)


def test_shared_passages_are_read_from_the_cache(traffic: Traffic) -> None:
    traffic.ask(rag_question(5))
    assert traffic.ask(rag_question(5)).prism["cached_tokens"] > 0


def test_the_config_is_applied_to_the_mounted_file(predictor: Predictor) -> None:
    wait_for("the pod obeys the config", lambda: _applied(predictor) == "1/1", seconds=120, every=0.5)
    (pod,) = predictor.ready_pods()
    mounted = predictor.execute(pod, "cat", f"/etc/prism/settings/{predictor.name}.yaml")
    assert f"generation: {_generation(predictor)}" in mounted


def test_an_edit_under_load_takes_effect_with_no_failed_request(
    predictor: Predictor, jaeger: Jaeger, traffic: Traffic
) -> None:
    with traffic.running():
        time.sleep(2)
        began = time.monotonic()
        predictor.cluster.apply(prism_config(predictor.namespace, quota=0.5))
        generation = _generation(predictor)
        wait_for("the engine obeys the edit", lambda: _in_force(predictor) == generation, seconds=90, every=0.5)
        took = time.monotonic() - began
        time.sleep(2)
    assert traffic.failures == []
    assert took < 90
    spans = jaeger.trace(traffic.answered[-1].trace_id)
    assert {span.tags.get(names.SETTINGS_GENERATION) for span in spans} >= {generation}
    wait_for("the status says so", lambda: _applied(predictor) == "1/1", seconds=90, every=0.5)


def _in_force(predictor: Predictor) -> float:
    return next(iter(_samples(predictor, metrics.SETTINGS_GENERATION).values()), -1.0)


def _samples(predictor: Predictor, name: str) -> dict[str, float]:
    with httpx.Client(trust_env=False, timeout=10) as client:
        text = client.get(f"{predictor.url}/metrics").text
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith(name)]
    return {series: float(value) for series, _, value in lines}


def test_the_metrics_count_what_was_asked(predictor: Predictor, traffic: Traffic) -> None:
    before = sum(_samples(predictor, metrics.REQUESTS).values())
    for number in range(3):
        traffic.ask(rag_question(number))
    counted = lambda: sum(_samples(predictor, metrics.REQUESTS).values()) == before + 3  # noqa: E731
    wait_for("three more requests are counted", counted, seconds=10)
    assert any("part=" in series for series in _samples(predictor, metrics.TTFT_PART))


def test_a_predictor_that_cannot_be_asked_is_named_and_caught_up_with(
    prism: Installation, predictor: Predictor, traffic: Traffic
) -> None:
    (pod,) = predictor.ready_pods()
    address = pod["status"]["podIP"]
    with prism.cluster.node.cut_off(prism.operator_pods()[0], address):
        predictor.cluster.apply(prism_config(predictor.namespace, quota=0.3))
        wait_for("the pod counts as not reached", lambda: _applied(predictor) == "0/1", seconds=60, every=0.5)
        assert traffic.ask(rag_question(2)).text is not None, "whoever cannot be asked serves all the same"
    wait_for("the pod obeys the config", lambda: _applied(predictor) == "1/1", seconds=150, every=0.5)


def test_a_rollout_under_load_loses_no_request(predictor: Predictor, traffic: Traffic) -> None:
    where = ["deployment", f"{predictor.name}-predictor", "-n", predictor.namespace]
    # The new pod starts beside the old one, on the same cores: the old one must not take them all.
    with traffic.running(clients=1, pause_s=1.0):
        time.sleep(1)
        predictor.cluster.kubectl("rollout", "restart", *where)
        predictor.cluster.kubectl("rollout", "status", *where, "--timeout=500s", seconds=520)
        # Before its grace period is over, that is, by itself.
        wait_for("the old pod is gone", lambda: len(_all_pods(predictor)) == 1, seconds=28, every=0.5)
    assert traffic.failures == []
    assert len(traffic.answered) > 10


def _all_pods(predictor: Predictor) -> list[object]:
    label = f"serving.kserve.io/inferenceservice={predictor.name}"
    return list(predictor.cluster.get("pods", "-n", predictor.namespace, "-l", label)["items"])


_KILL_ENGINE = """
import os, signal, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if "EngineCor" in path.read_text():
        os.kill(int(path.parent.name), signal.SIGKILL)
        print(path.parent.name)
"""


def test_a_killed_engine_is_replaced(predictor: Predictor, traffic: Traffic) -> None:
    (pod,) = predictor.ready_pods()
    killed = predictor.execute(pod, "python3", "-c", _KILL_ENGINE)
    assert killed.split(), "an engine process was found"
    wait_for("the pod takes no requests", lambda: not predictor.ready_pods(), seconds=60)
    wait_for("a new engine serves", lambda: bool(predictor.ready_pods()), seconds=300, every=1)
    (pod,) = predictor.ready_pods()
    assert pod["status"]["containerStatuses"][0]["restartCount"] >= 1
    assert traffic.ask([{"role": "user", "content": "Are you there?"}]).text is not None


def test_the_predictor_runs_as_designed(predictor: Predictor) -> None:
    (pod,) = predictor.ready_pods()
    first = predictor.execute(pod, "cat", "/proc/1/cmdline").split("\0")
    assert first[:4] == ["/opt/prism/bin/python", "-m", "prism", "serve"], "PID 1 is the process itself"
    assert predictor.execute(pod, "id", "-u").strip() != "0"
    where = predictor.execute(pod, "python", "-c", "import prism; print(prism.__file__)")
    assert where.startswith("/opt/prism/"), "the code is the image's own; only its libraries are mounted"
    written = predictor.execute(pod, "sh", "-c", "touch /opt/prism/x 2>&1 || true")
    assert "Read-only file system" in written


def test_uninstalling_leaves_the_predictor_with_its_settings(
    predictor: Predictor, prism: Installation, cluster: Cluster, traffic: Traffic
) -> None:
    prism.uninstall()
    assert traffic.ask(rag_question(1)).text is not None
    (pod,) = predictor.ready_pods()
    assert predictor.execute(pod, "cat", f"/etc/prism/settings/{predictor.name}.yaml")
    assert cluster.kubectl("get", "crd", "prismconfigs.serving.prism.dev", "-o", "name")
