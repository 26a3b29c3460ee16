"""Bad bodies over HTTP: whatever is sent is answered, and nothing fails in the server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.realserver import MODEL

pytestmark = [pytest.mark.engine, pytest.mark.timeout(660)]

bounded = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def is_answer(response: Any) -> bool:
    """No failure of the server's own: those are 500 and, since the engine lives, 503."""
    return response.status_code < 500 or response.status_code in (501, 504)


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
