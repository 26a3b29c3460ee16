"""What a running predictor says of itself: metrics on both ports, explanations, the view at a glance."""

from __future__ import annotations

import json
import re
import time
import uuid
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from prism.__main__ import app
from prism.telemetry import metrics as m

pytestmark = [pytest.mark.engine, pytest.mark.timeout(660)]

CHAT = "/openai/v1/chat/completions"
Reading = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def ask(http: httpx.Client, *texts: str, request_id: str | None = None, **fields: Any) -> httpx.Response:
    """A chat of documents and a question."""
    parts = [{"type": "text", "text": text} for text in texts]
    body = {"model": "tiny", "messages": [{"role": "user", "content": parts}], "max_tokens": 3, **fields}
    return http.post(CHAT, json=body, headers={"x-request-id": request_id or uuid.uuid4().hex})


def document(name: str) -> str:
    return f"This is what stands in document {name}, and nothing else. " * 12


def read(url: str) -> Reading:
    text = httpx.get(url).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("prism_")
    }


def total(reading: Reading, name: str, **labels: str) -> float:
    wanted = {"model_name": "tiny", **labels}.items()
    return sum(value for (found, has), value in reading.items() if found == name and wanted <= dict(has).items())


def settled(served: Any) -> Reading:
    """The metrics once every request that arrived is counted as ended."""
    limit = time.monotonic() + 10
    while total(reading := read(f"{served.admin}/metrics"), m.OPEN_REQUESTS) and time.monotonic() < limit:
        time.sleep(0.05)
    return reading


def explained(served: Any, request_id: str, **query: str) -> dict[str, Any]:
    answer = httpx.get(f"{served.admin}/explain/{request_id}", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def reuse(served: Any, request_id: str) -> list[tuple[str, str]]:
    return [(segment["kind"], segment["reuse"]) for segment in explained(served, request_id)["segments"]]


def test_the_serving_port_shows_prisms_metrics_beside_vllms_and_kserves(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    assert all(name in text for name in ("prism_ttft_seconds_bucket", "vllm:num_requests_running", "request_predict"))


def test_the_admin_port_shows_prisms_alone_and_the_same(served: Any) -> None:
    text = httpx.get(f"{served.admin}/metrics").text
    families = {family.name for family in text_string_to_metric_families(text)}
    assert all(name.startswith("prism_") for name in families)
    assert {name for name, _ in read(f"{served.admin}/metrics")} == {name for name, _ in read(f"{served.url}/metrics")}


def test_arrived_requests_are_those_that_ended_however_they_did(served: Any, http: httpx.Client) -> None:
    before = settled(served)
    ask(http, "answer this")
    ask(http, "answer this", stream=True)
    ask(http, "answer this", model="nobody")
    with http.stream("POST", CHAT, json={**LONG, "stream": True}) as answer:
        next(answer.iter_lines())
    after = settled(served)
    grown = {
        outcome: total(after, m.REQUESTS, outcome=outcome) - total(before, m.REQUESTS, outcome=outcome)
        for outcome in m.OUTCOMES
    }
    assert grown == {"finished": 2, "failed": 0, "refused": 1, "cancelled": 1}
    assert total(after, m.ARRIVED_REQUESTS) == total(after, m.REQUESTS)
    refused = {"reason": "unknown_model"}
    assert total(after, m.REFUSED_REQUESTS, **refused) - total(before, m.REFUSED_REQUESTS, **refused) == 1


LONG = {"model": "tiny", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 1500, "ignore_eos": True}


def test_response_metric_and_trace_say_one_time_to_first_token(served: Any, http: httpx.Client) -> None:
    before = settled(served)
    answer = ask(http, "how long?", request_id="one-ttft")
    after = settled(served)
    said = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", answer.headers["x-prism-ttft"])}
    counted = {
        part: total(after, f"{m.TTFT_PART}_sum", part=part) - total(before, f"{m.TTFT_PART}_sum", part=part)
        for part in m.PARTS
    }
    assert counted == pytest.approx(said, abs=1e-5)
    assert explained(served, "one-ttft")["ttft_seconds"] == pytest.approx(said, abs=1e-5)
    ttft = total(after, f"{m.TTFT}_sum") - total(before, f"{m.TTFT}_sum")
    assert ttft == pytest.approx(sum(said.values()), abs=1e-5)


def test_prompt_tokens_are_counted_as_the_response_counts_them(served: Any, http: httpx.Client) -> None:
    ask(http, document("counted"), "first")
    before = settled(served)
    usage = ask(http, document("counted"), "second").json()["usage"]
    after = settled(served)
    grown = [
        total(after, m.PROMPT_TOKENS, cached=cached) - total(before, m.PROMPT_TOKENS, cached=cached)
        for cached in ("true", "false")
    ]
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached_tokens > 0
    assert grown == [cached_tokens, usage["prompt_tokens"] - cached_tokens]


def test_a_request_is_explained_segment_by_segment(served: Any, http: httpx.Client) -> None:
    ask(http, document("a"), document("b"), "what?", request_id="explain-1")
    ask(http, document("a"), document("b"), "and now?", request_id="explain-2")
    ask(http, document("c"), document("b"), "what else?", request_id="explain-3")
    first, second, third = (reuse(served, f"explain-{number}") for number in (1, 2, 3))
    documents = [[verdict for kind, verdict in one if kind == "document"] for one in (first, second, third)]
    assert documents[0][-1] == "never_seen"
    assert documents[1] == ["hit", "hit"]
    assert documents[2][-1] == "not_at_prefix"
    assert documents[2][0] in ("differs", "never_seen")


def test_an_emptied_cache_is_the_reason_of_a_miss(served: Any, http: httpx.Client) -> None:
    ask(http, document("reset"), "what?")
    assert httpx.post(f"{served.admin}/reset_prefix_cache").json() == {"reset": True}
    ask(http, document("reset"), "what?", request_id="after-reset")
    told = explained(served, "after-reset")
    missed = next(segment for segment in told["segments"] if segment["kind"] == "document")
    assert (missed["reuse"], missed["lost_as"]) == ("evicted", "reset")
    assert 0 <= missed["lost_seconds_before"] < 60


def test_what_another_tenant_sent_is_told_only_when_asked(served: Any, http: httpx.Client) -> None:
    ask(http, document("shared"), "what?", cache_salt="one")
    ask(http, document("shared"), "what?", cache_salt="two", request_id="tenant-two")
    kept, asked = explained(served, "tenant-two"), explained(served, "tenant-two", all_tenants="true")
    assert all(segment["reuse"] != "hit" and segment["other_tenant"] is None for segment in kept["segments"])
    assert "another tenant" not in " ".join(kept["lines"])
    assert any(segment["other_tenant"] for segment in asked["segments"] if segment["kind"] == "document")


def test_a_request_is_found_by_its_trace_id_too(served: Any, http: httpx.Client) -> None:
    trace = uuid.uuid4().hex
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": "by-trace"}
    http.post(CHAT, json={**LONG, "max_tokens": 2}, headers=headers)
    assert explained(served, trace)["request_id"] == "by-trace"


def test_a_request_under_way_is_explained(served: Any, http: httpx.Client) -> None:
    # A machine that keeps this process from running for a second or two lets the answer end first: asked anew then.
    told = next((told for told in (_explained_under_way(served, http) for _ in range(5)) if told["status"] is None), {})
    assert told.get("state") == "running"


def _explained_under_way(served: Any, http: httpx.Client) -> dict[str, Any]:
    request_id = f"under-way-{uuid.uuid4().hex}"
    with http.stream("POST", CHAT, json={**LONG, "stream": True}, headers={"x-request-id": request_id}) as answer:
        lines = answer.iter_lines()
        while '"content"' not in next(lines):
            pass
        return explained(served, request_id)


def test_an_unknown_request_says_where_it_was_looked_for(served: Any) -> None:
    answer = httpx.get(f"{served.admin}/explain/nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "No request nobody is under way or among the last 512 that ended."


def test_the_commands_ask_a_running_predictor(served: Any, http: httpx.Client) -> None:
    ask(http, "for the command line", request_id="by-command")
    admin = ["--admin", f"127.0.0.1:{served.admin_port}"]
    seen = json.loads(CliRunner().invoke(app, ["top", *admin, "--once", "--json"]).output)
    told = CliRunner().invoke(app, ["explain", "by-command", *admin])
    assert (seen["model_name"], seen["engine"], seen["settings"]["source"]) == ("tiny", "ready", "defaults")
    assert seen["cache"]["total_blocks"] == 1024
    assert told.output.startswith("by-command: finished with 200, model tiny")
