"""What a client of the served model sees, with httpx."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import anyio
import httpx
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(660)]

CHAT = "/openai/v1/chat/completions"
DOCUMENTS = [{"type": "text", "text": f"Document {n} says that the answer is {n * 7}.\n" * 8} for n in range(1, 5)]
QUESTION = {"type": "text", "text": "What is the answer?"}


def chat(**fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}
    return {**body, **fields}


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_chat_is_answered_below_the_prefix_and_at_the_root(http: httpx.Client) -> None:
    below, root = http.post(CHAT, json=chat()), http.post("/v1/chat/completions", json=chat())
    assert (below.status_code, root.status_code) == (200, 200)


def test_an_unstreamed_answer_says_how_it_was_served(http: httpx.Client) -> None:
    headers = http.post(CHAT, json=chat()).headers
    assert headers["x-prism-lane"] in ("hot", "cold", "none")
    assert headers["x-prism-reordered"] == "false"
    assert headers["x-prism-cached-tokens"].isdigit()
    parts = dict(re.findall(r"(\w+)=([\d.]+)", headers["x-prism-ttft"]))
    assert set(parts) == {"admission_wait", "prefill", "first_token"}


def test_a_stream_carries_the_prism_object_in_its_usage_chunk(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=chat(stream=True, stream_options={"include_usage": True}))
    *contents, usage = events(answer.text)
    assert usage["choices"] == []
    assert set(usage["prism"]) == {"lane", "reordered", "cached_tokens", "ttft"}
    assert set(usage["prism"]["ttft"]) == {"admission_wait", "prefill", "first_token"}
    assert not any("prism" in chunk for chunk in contents)
    assert answer.text.endswith("data: [DONE]\n\n")


def test_a_stream_without_usage_is_left_as_it_is(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=chat(stream=True))
    assert not any("prism" in chunk or chunk.get("usage") for chunk in events(answer.text))
    assert "x-prism-lane" not in answer.headers


def test_a_repeated_prompt_reports_its_cached_tokens(http: httpx.Client) -> None:
    body = chat(messages=[{"role": "user", "content": [*DOCUMENTS, QUESTION]}])
    http.post(CHAT, json=body)
    again = http.post(CHAT, json=body)
    cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 32
    assert int(again.headers["x-prism-cached-tokens"]) == cached


def test_two_tenants_share_no_cache(http: httpx.Client) -> None:
    body = chat(messages=[{"role": "user", "content": "one tenant's words " * 40}])
    http.post(CHAT, json={**body, "cache_salt": "a"})
    other = http.post(CHAT, json={**body, "cache_salt": "b"})
    same = http.post(CHAT, json={**body, "cache_salt": "a"})
    assert int(other.headers["x-prism-cached-tokens"]) == 0
    assert int(same.headers["x-prism-cached-tokens"]) > 0


def test_the_callers_request_id_comes_back(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=chat(), headers={"x-request-id": "mine-1"})
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


@pytest.mark.parametrize("given", ["", "with space", "x" * 200])
def test_a_request_id_that_cannot_be_used_is_replaced(http: httpx.Client, given: str) -> None:
    answer = http.post(CHAT, json=chat(), headers={"x-request-id": given})
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


def test_an_error_has_a_request_id_too(http: httpx.Client) -> None:
    assert http.post(CHAT, content=b"{", headers={"content-type": "application/json"}).headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"reorde": True}, "prism.reorde"),
        ({"reorder": "yes"}, "prism.reorder"),
        ({"segments": [{"message": 0, "part": None, "kind": "novel"}]}, "prism.segments[0].kind"),
        ({"segments": [{"message": 9, "part": None, "kind": "document"}]}, "prism.segments[0].message"),
        ({"deadline_seconds": 0}, "prism.deadline_seconds"),
        ([], "prism"),
    ],
)
def test_a_bad_prism_object_is_refused_by_its_path(http: httpx.Client, field: object, param: str, stream: bool) -> None:
    answer = http.post(CHAT, json=chat(prism=field, stream=stream))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("route", ["/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render"])
def test_a_prism_object_elsewhere_is_refused(http: httpx.Client, route: str) -> None:
    answer = http.post(route, json=chat(prism={"reorder": True}))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prism"


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_not_found(http: httpx.Client, stream: bool) -> None:
    answer = http.post(CHAT, json=chat(model="nobody", stream=stream))
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize("stream", [False, True])
def test_an_over_long_prompt_is_refused_before_the_stream_starts(http: httpx.Client, stream: bool) -> None:
    body = chat(messages=[{"role": "user", "content": "hello " * 4000}], stream=stream)
    answer = http.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_past_its_deadline_is_ended(http: httpx.Client, stream: bool) -> None:
    answer = http.post(CHAT, json=chat(prism={"deadline_seconds": 1e-6}, stream=stream))
    error = (events(answer.text)[-1] if stream else answer.json())["error"]
    assert answer.status_code == (200 if stream else 504)
    assert (error["code"], error["type"]) == (504, "DeadlineExceededError")


def test_declared_documents_may_be_reordered(http: httpx.Client) -> None:
    body = chat(messages=[{"role": "user", "content": [*DOCUMENTS, QUESTION]}], prism={"reorder": True})
    assert http.post(CHAT, json=body).headers["x-prism-reordered"] in ("true", "false")


def test_models_are_listed_in_openais_form(http: httpx.Client) -> None:
    for path in ("/v1/models", "/openai/v1/models"):
        listed = http.get(path).json()
        assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["tiny"])


def test_one_model_is_found_by_name_or_not(http: httpx.Client) -> None:
    assert http.get("/openai/v1/models/tiny").json()["object"] == "model"
    missing = http.get("/openai/v1/models/nobody")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")


def test_kserve_keeps_its_own_model_routes(http: httpx.Client) -> None:
    assert http.get("/v1/models/tiny").json() == {"name": "tiny", "ready": True}
    assert http.get("/v2/models/tiny/ready").json()["ready"] is True
    assert http.get("/v1/models/nobody").status_code == 404


def test_the_probes_answer_with_the_engines_state(http: httpx.Client) -> None:
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True, "state": "ready"}


def test_metrics_hold_vllms_and_kserves(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    assert "vllm:num_requests_running" in text
    assert "request_preprocess_seconds" in text


def test_tokenize_is_vllms(http: httpx.Client) -> None:
    assert http.post("/tokenize", json={"model": "tiny", "prompt": "hello world"}).json()["count"] > 0


def test_the_admin_port_shows_the_settings_in_force(served: Any) -> None:
    shown = httpx.get(f"{served.admin}/settings").json()
    assert (shown["generation"], shown["source"], shown["last_refusal"]) == (0, "defaults", None)
    assert shown["spec"]["scheduler"]["order"] == "Prism"
    assert [engine["engine"] for engine in shown["engines"]] == [0]


def test_parts_add_up_to_the_time_to_first_token(served: Any, http: httpx.Client) -> None:
    http.post(CHAT, json=chat(stream=True), headers={"x-request-id": "parts-1"})
    request = _shown(served, "parts-1")
    assert request["outcome"] == "finished"
    assert sum(part["seconds"] for part in request["parts"][:3]) == pytest.approx(request["ttft_s"], abs=1e-5)
    assert [part["name"] for part in request["parts"]] == ["admission_wait", "prefill", "first_token", "decode"]


def test_a_refused_request_leaves_a_trace(served: Any, http: httpx.Client) -> None:
    http.post(CHAT, json=chat(model="nobody"), headers={"x-request-id": "refused-1"})
    request = _shown(served, "refused-1")
    assert (request["outcome"], request["status"], request["reason"]) == ("refused", 404, "unknown_model")


def test_fifty_clients_that_hang_up_leave_nothing_running(served: Any, http: httpx.Client) -> None:
    anyio.run(_hang_up, served.url, 50)
    hung_up = time.monotonic()
    while (running := _running(http)) and time.monotonic() < hung_up + 5:
        time.sleep(0.05)
    assert running == 0
    assert time.monotonic() - hung_up < 1.0
    last = [r["outcome"] for r in httpx.get(f"{served.admin}/requests?last=50").json()["requests"]]
    assert last.count("cancelled") == 50


def test_the_prefix_cache_can_be_emptied(served: Any) -> None:
    assert httpx.post(f"{served.admin}/reset_prefix_cache").json() == {"reset": True}


def _shown(served: Any, request_id: str) -> dict[str, Any]:
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        for request in httpx.get(f"{served.admin}/requests?last=20").json()["requests"]:
            if request["request_id"] == request_id:
                return dict(request)
        time.sleep(0.05)
    raise AssertionError(f"{request_id} is not among the last requests")


def _running(http: httpx.Client) -> float:
    lines = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    return sum(float(value) for value in lines)


async def _hang_up(url: str, count: int) -> None:
    body = chat(stream=True, max_tokens=1500, ignore_eos=True)

    async def one(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", CHAT, json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    return

    limits = httpx.Limits(max_connections=count)
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client,
        anyio.create_task_group() as group,
    ):
        for _ in range(count):
            group.start_soon(one, client)
