"""Whatever is sent over HTTP is answered, nothing fails in the server, and its processes live on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case
from schemathesis.core.result import Ok
from tests.realserver import MODEL, Served

pytestmark = [pytest.mark.engine, pytest.mark.timeout(660)]

TIMEOUT_SECONDS = 60

bounded = settings(max_examples=12, derandomize=True, suppress_health_check=list(HealthCheck))


def is_answer(response: Any) -> bool:
    """No failure of the server's own: those are 500 and, since the engine lives, 503; in a stream they come late."""
    late = "event-stream" in response.headers.get("content-type", "") and "InternalServerError" in response.text
    return (response.status_code < 500 or response.status_code in (501, 504)) and not late


INFERENCE = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
NAMES = """messages prompt input prism documents tools cache_salt stream stop logprobs chat_template_kwargs vllm_xargs
response_format stream_options logit_bias priority system"""
FIELDS = st.sampled_from(NAMES.split())


@bounded
@given(route=INFERENCE, fields=st.dictionaries(FIELDS, ANYTHING, max_size=3), streamed=st.booleans())
def check_one_field_off(http: httpx.Client, route: str, fields: dict[str, Any], streamed: bool) -> None:
    good = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "prompt": "hello",
        "input": "hello",
        "max_tokens": 2,
        "max_output_tokens": 2,
        "stream": streamed,
    }
    content = json.dumps({**good, **fields}).encode()
    answer = http.post(route, content=content, headers={"content-type": "application/json"})
    assert is_answer(answer), (answer.status_code, answer.text)


def test_a_good_request_with_some_fields_off_is_answered(http: httpx.Client) -> None:
    check_one_field_off(http)


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/responses"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 50_000, b'{"prism": ' * 5_000],
    ids=["empty", "half", "null", "list", "text", "not utf-8", "surrogate", "deep", "deep objects"],
)
def test_a_body_that_is_no_request_is_refused(http: httpx.Client, route: str, content: bytes) -> None:
    answer = http.post(route, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404, 422)


Operation = APIOperation[Any, Any, Any, Any]
Body = dict[str, Any]

USER = {"role": "user", "content": "hello"}
GOOD: dict[str, Body] = {
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5, 6]},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/chat/completions/batch": {"messages": [[USER], [USER]]},
    "/v1/chat/completions/render": {"messages": [USER]},
    "/v1/completions": {"prompt": "hello"},
    "/v1/completions/render": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": [USER]},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/inference/v1/generate": {"token_ids": [5, 6, 7]},
}
"""What gets past the door where a body from the description alone would not."""

NOT_ASKED = ("lora_adapter", "scale_elastic_ep", "/v2/repository/")
"""They load files and models by name and restart engines: what they do to the session's server is no claim of this
file, and KServe answers 503 to a model that can't be loaded."""

FIELDS_ALONE = 4
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
EXAMPLES = settings(
    max_examples=5,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def short(path: str, body: Any) -> Any:
    """The same body, with an answer of a few tokens and no more than three choices."""
    if not isinstance(body, dict):
        return body
    limits = {name: body[name] for name in LENGTHS if isinstance(body.get(name), int)}
    body = {**body, **{name: min(value, 4) for name, value in limits.items()}}
    body |= {"n": min(body["n"], 3)} if isinstance(body.get("n"), int) else {}
    if path == "/inference/v1/generate":
        params = body.get("sampling_params")
        return {**body, "sampling_params": short("", params if isinstance(params, dict) else {"max_tokens": 2})}
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return body if body.get(name) is not None else {**body, name: 3}


def variants(path: str, body: Any) -> Iterator[Any]:
    """The body as the description made it; its fields around a good prompt, all of them and one at a time."""
    yield short(path, body)
    if path not in GOOD or not isinstance(body, dict):
        return
    good = {**GOOD[path], "model": MODEL}
    yield short(path, {**body, **good})
    for name in [name for name in body if name not in ("model", *GOOD[path])][:FIELDS_ALONE]:
        yield short(path, {**good, name: body[name]})


def failures_of(operation: Operation, url: str, session: requests.Session) -> list[str]:
    """What was sent to one operation and failed in the server."""
    failed: list[str] = []
    described = operation.path.removeprefix("/openai")

    @EXAMPLES
    @given(case=operation.as_strategy())
    def send(case: Case[Any]) -> None:
        bodies = variants(described, case.body) if operation.method.upper() == "POST" else iter([case.body])
        for case.body in bodies:
            response = case.call(base_url=url, session=session, timeout=TIMEOUT_SECONDS)
            if not is_answer(response):
                failed.append(f"{operation.label}: {response.status_code} {case.body!r} {response.text}")

    send()
    return failed


@pytest.mark.parametrize(
    ("description", "contained"),
    [("/openai/openapi.json", "POST /v1/chat/completions"), ("/openapi.json", "GET /v2/models/{model_name}/ready")],
    ids=["vLLM's", "KServe's"],
)
def test_whatever_the_servers_own_description_allows_is_answered(
    served: Served, ask: Callable[[], int], description: str, contained: str
) -> None:
    processes = served.engine_core.pid, served.worker.pid
    document = httpx.get(f"{served.url}{description}").json()
    found = [one.ok() for one in schemathesis.openapi.from_dict(document).get_all_operations() if isinstance(one, Ok)]
    operations = [one for one in found if not any(name in one.path for name in NOT_ASKED)]
    assert contained in {operation.label for operation in operations}
    with requests.Session() as session:
        failed = [failure for one in operations for failure in failures_of(one, served.url, session)]
    assert failed == []
    assert (served.engine_core.pid, served.worker.pid, ask()) == (*processes, 200)


@pytest.fixture
def ask(http: httpx.Client) -> Callable[[], int]:
    """A plain question; the status of its answer."""
    body = {"model": MODEL, "messages": [USER], "max_tokens": 2}
    return lambda: http.post("/v1/chat/completions", json=body).status_code


@pytest.mark.parametrize(
    "item",
    [{"type": "mcp_list_tools", "id": "x", "server_label": "y", "tools": []}, {"id": "x"}],
    ids=["unknown to vLLM", "without a role"],
)
def test_an_input_item_that_vllm_stumbles_over_is_the_callers_mistake(http: httpx.Client, item: Body) -> None:
    answer = http.post("/v1/responses", json={"model": MODEL, "input": [item], "max_output_tokens": 2})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "BadRequestError")
    assert error["message"]


TOO_LARGE = 2**70
UNSENDABLE: list[tuple[str, Body]] = [
    ("/v1/chat/completions", {"messages": [USER], "stop_token_ids": [TOO_LARGE]}),
    ("/v1/chat/completions", {"messages": [USER], "stop_token_ids": [TOO_LARGE], "n": 2, "stream": True}),
    ("/v1/completions", {"prompt": "hello", "stop_token_ids": [TOO_LARGE]}),
    ("/v1/messages", {"messages": [USER], "kv_transfer_params": {"x": TOO_LARGE}}),
]


@pytest.mark.parametrize(("route", "body"), UNSENDABLE)
def test_a_number_that_no_message_to_the_engine_can_hold_is_refused_and_leaves_nothing(
    http: httpx.Client, served: Served, route: str, body: Body
) -> None:
    answer = http.post(route, json={"model": MODEL, "max_tokens": 2, **body})
    assert is_answer(answer), (answer.status_code, answer.text)
    assert "can't be sent" in answer.text
    assert served.sizes()["vllm_requests"] == 0
