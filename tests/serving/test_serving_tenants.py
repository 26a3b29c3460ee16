"""Salts, adapters and the base model share no cached prefix, on any route, whatever they are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.realserver import Served
from tests.serving.adapters import write_adapter

pytestmark = [pytest.mark.engine, pytest.mark.timeout(660)]

Body = dict[str, Any]

CHAT = "/v1/chat/completions"
ROUTES: dict[str, Callable[[str], Body]] = {
    CHAT: lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
    "/v1/completions": lambda text: {"prompt": text, "max_tokens": 4},
    "/v1/responses": lambda text: {"input": text, "max_output_tokens": 4},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
    "/inference/v1/generate": lambda text: {
        "token_ids": [ord(char) % 1000 + 10 for char in text],
        "sampling_params": {"max_tokens": 4},
    },
}


def post(http: httpx.Client, route: str, body: Body) -> httpx.Response:
    answer = http.post(route, json={"model": "tiny", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return answer


def cached(http: httpx.Client, route: str, body: Body) -> int:
    return int(post(http, route, body).headers["x-prism-cached-tokens"])


@pytest.mark.parametrize("route", ROUTES)
def test_a_prompt_is_cold_for_every_other_salt(http: httpx.Client, route: str) -> None:
    body = ROUTES[route](f"what a tenant asks on {route} " * 40)
    assert cached(http, route, {**body, "cache_salt": "a"}) == 0
    assert cached(http, route, {**body, "cache_salt": "b"}) == 0
    assert cached(http, route, body) == 0
    assert cached(http, route, {**body, "cache_salt": "a"}) >= 32
    assert cached(http, route, body) >= 32


def test_a_salt_means_the_same_on_every_route_that_renders_the_same_prompt(http: httpx.Client) -> None:
    text = "one conversation, two ways to ask " * 40
    post(http, CHAT, {**ROUTES[CHAT](text), "cache_salt": "shared"})
    assert cached(http, "/v1/messages", {**ROUTES["/v1/messages"](text), "cache_salt": "shared"}) >= 32


def test_the_prism_object_acts_on_messages(http: httpx.Client) -> None:
    body = ROUTES["/v1/messages"]("hello there")
    answer = http.post("/v1/messages", json={"model": "tiny", **body, "prism": {"reorde": True}})
    assert (answer.status_code, "prism.reorde" in answer.text) == (400, True)
    late = http.post("/v1/messages", json={"model": "tiny", **body, "prism": {"deadline_seconds": 1e-6}})
    assert late.status_code == 504


# ---- adapters ----


class Adapters:
    """The server's adapters, loaded by name from one of two folders."""

    def __init__(self, http: httpx.Client, folders: list[Path]) -> None:
        self._http = http
        self._folders = folders

    def load(self, version: int, *, in_place: bool = False) -> None:
        body = {"lora_name": "adapter", "lora_path": str(self._folders[version]), "load_inplace": in_place}
        answer = self._http.post("/v1/load_lora_adapter", json=body)
        assert answer.status_code == 200, answer.text

    def unload(self) -> None:
        self._http.post("/v1/unload_lora_adapter", json={"lora_name": "adapter"})

    def ask(self, text: str, **more: Any) -> tuple[int, str]:
        """(cached tokens, answer)"""
        answer = post(self._http, CHAT, {**ROUTES[CHAT](text), "model": "adapter", **more})
        return int(answer.headers["x-prism-cached-tokens"]), answer.json()["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def folders(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"v{seed}", tiny_model_folder, seed) for seed in (1, 2)]


@pytest.fixture
def adapters(http: httpx.Client, folders: list[Path]) -> Any:
    one = Adapters(http, folders)
    one.load(0)
    yield one
    one.unload()


def text_of(request: pytest.FixtureRequest) -> str:
    return f"what is asked by {request.node.name} " * 30


def test_an_adapter_and_the_base_model_share_nothing(
    adapters: Adapters, http: httpx.Client, request: pytest.FixtureRequest
) -> None:
    text = text_of(request)
    assert adapters.ask(text)[0] == 0
    assert cached(http, CHAT, ROUTES[CHAT](text)) == 0
    assert adapters.ask(text)[0] >= 32


@pytest.mark.parametrize("salt", ["adapter", "prism:adapter:adapter:1", "adapter:1"])
def test_a_salt_that_equals_an_adapters_name_finds_nothing_of_it(
    adapters: Adapters, http: httpx.Client, request: pytest.FixtureRequest, salt: str
) -> None:
    text = text_of(request)
    adapters.ask(text)
    assert cached(http, CHAT, {**ROUTES[CHAT](text), "cache_salt": salt}) == 0


def test_an_adapter_that_is_unloaded_and_loaded_again_starts_cold(
    adapters: Adapters, request: pytest.FixtureRequest
) -> None:
    text = text_of(request)
    adapters.ask(text)
    assert adapters.ask(text)[0] >= 32
    adapters.unload()
    adapters.load(1)
    found, answer = adapters.ask(text)
    assert (found, answer) == (0, adapters.ask(text, cache_salt="cold")[1])


def test_an_adapter_that_is_loaded_in_place_starts_cold(adapters: Adapters, request: pytest.FixtureRequest) -> None:
    text = text_of(request)
    first = adapters.ask(text)[1]
    assert adapters.ask(text)[0] >= 32
    adapters.load(1, in_place=True)
    found, answer = adapters.ask(text)
    assert found == 0
    assert answer == adapters.ask(text, cache_salt="cold")[1] != first


def test_the_admin_port_shows_nothing_of_another_tenants_prompt(served: Served, http: httpx.Client) -> None:
    words = "the words of one tenant alone"
    post(http, CHAT, {**ROUTES[CHAT](words), "cache_salt": "secret-salt"})
    for path in ("requests?last=50", "settings", "metrics", "top"):
        shown = httpx.get(f"{served.admin}/{path}").text
        assert words not in shown
        assert "secret-salt" not in shown
