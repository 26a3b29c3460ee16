"""A cache stays equal to what the API server holds, whatever happens to the watch.

The API server here is a script: it misbehaves on purpose, as a real one cannot be made to. The operator's real client
talks to it over a real socket; the cluster tests do the same with a real API server.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from prism_operator.api import CONFIG_MAPS, Api
from prism_operator.cache import Cache
from prism_operator.errors import Forbidden, Missing, Outdated, Refused, Terminating, Unavailable, api_error
from prism_operator.objects import Owned, read_owned
from prism_operator.reflector import Reflector

Line = dict[str, Any] | float
"""What a watch says next: an event, or seconds of silence."""


class Script:
    """What lists and watches answer, one after the other; the last of each is repeated."""

    def __init__(self) -> None:
        self.lists: list[tuple[int, list[str], str]] = []
        self.watches: list[list[Line] | int] = []
        self.watched_from: list[str] = []

    def next_list(self) -> tuple[int, list[str], str]:
        return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]

    def next_watch(self, version: str) -> list[Line] | int:
        self.watched_from.append(version)
        return self.watches.pop(0) if self.watches else [30.0]


def config_map(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": name, "resourceVersion": version}, "data": {}}


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": config_map(name, version)}


GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def api(script: Script) -> Iterator[Api]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # chunks, as the API server sends its watches

        def do_GET(self) -> None:
            query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
            if "watch" in query:
                self._watch(script.next_watch(query.get("resourceVersion", "")))
            else:
                self._list(*script.next_list())

        def _list(self, status: int, names: list[str], version: str) -> None:
            body = {"metadata": {"resourceVersion": version}, "items": [config_map(name) for name in names]}
            self._begin(status)
            self._chunk(json.dumps(body if status == 200 else {"message": f"no: {status}"}).encode())
            self._chunk(b"")

        def _watch(self, lines: list[Line] | int) -> None:
            self._begin(lines if isinstance(lines, int) else 200)
            for line in lines if isinstance(lines, list) else []:
                if isinstance(line, float):
                    time.sleep(line)
                else:
                    self._chunk(json.dumps(line).encode() + b"\n")
            self._chunk(b"")

        def _begin(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def _chunk(self, data: bytes) -> None:
            with contextlib.suppress(OSError):  # the other side may have gone
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    configuration = client.Configuration(host=f"http://127.0.0.1:{server.server_address[1]}")
    configuration.retries = False
    yield Api(configuration)
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache() -> Cache[Owned]:
    return Cache()


@pytest.fixture
def reflector(api: Api, cache: Cache[Owned]) -> Iterator[Reflector[Owned]]:
    following = Reflector(api, CONFIG_MAPS, cache, read_owned, silence_s=1.0, resync_s=60.0)
    yield following
    following.stop()


def until(what: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def names(cache: Cache[Owned]) -> set[str]:
    return {owned.meta.name for owned in cache.all()}


def test_changes_are_taken_as_they_come(script: Script, reflector: Reflector[Owned], cache: Cache[Owned]) -> None:
    script.lists = [(200, ["a", "b"], "10")]
    script.watches = [[event("ADDED", "c", "11"), event("DELETED", "a", "12"), 30.0]]
    reflector.start()
    until(lambda: names(cache) == {"b", "c"})
    assert script.watched_from[0] == "10"


def test_a_watch_that_ends_goes_on_from_the_last_version(script: Script, reflector: Reflector[Owned]) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "15"}}}
    script.lists = [(200, [], "10")]
    script.watches = [[event("ADDED", "c", "11")], [bookmark]]
    reflector.start()
    until(lambda: script.watched_from[:3] == ["10", "11", "15"])


def test_a_version_that_is_gone_leads_to_a_new_list(
    script: Script, reflector: Reflector[Owned], cache: Cache[Owned]
) -> None:
    script.lists = [(200, ["a"], "10"), (200, ["b"], "90")]
    script.watches = [[GONE]]
    reflector.start()
    until(lambda: names(cache) == {"b"})
    until(lambda: script.watched_from[-1] == "90")


def test_a_410_in_place_of_a_watch_leads_to_a_new_list(
    script: Script, reflector: Reflector[Owned], cache: Cache[Owned]
) -> None:
    script.lists = [(200, ["a"], "10"), (200, ["b"], "90")]
    script.watches = [410]
    reflector.start()
    until(lambda: names(cache) == {"b"})


def test_a_silent_watch_is_begun_again(script: Script, reflector: Reflector[Owned], cache: Cache[Owned]) -> None:
    script.lists = [(200, [], "10")]
    script.watches = [[20.0], [event("ADDED", "late", "11"), 30.0]]
    reflector.start()
    until(lambda: names(cache) == {"late"}, seconds=15)


def test_a_kind_that_vanishes_for_a_while_empties_nothing(
    script: Script, reflector: Reflector[Owned], cache: Cache[Owned]
) -> None:
    script.lists = [(200, ["a"], "10"), (404, [], ""), (404, [], ""), (200, ["a", "b"], "20")]
    script.watches = [410]
    seen: list[int] = []
    reflector.start()
    until(lambda: seen.append(len(cache)) or names(cache) == {"a", "b"})  # type: ignore[func-returns-value]
    assert min(seen[seen.index(1) :]) == 1


def test_what_keeps_a_kind_unknown_is_a_sentence(script: Script, reflector: Reflector[Owned]) -> None:
    script.lists = [(403, [], "")]
    reflector.start()
    until(lambda: "lacks list and watch on configmaps" in reflector.trouble)
    assert not reflector.wait_listed(0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(0, Unavailable), (403, Forbidden), (404, Missing), (409, Outdated), (410, Outdated), (413, Refused),
     (422, Refused), (429, Unavailable), (503, Unavailable)],
)  # fmt: skip
def test_the_status_says_what_helps(status: int, kind: type[Exception]) -> None:
    assert type(api_error("get x", status, '{"message": "m"}')) is kind


def test_a_namespace_on_its_way_out_is_told_from_a_missing_right() -> None:
    body = {"message": "m", "details": {"causes": [{"reason": "NamespaceTerminating"}]}}
    assert type(api_error("apply x", 403, json.dumps(body))) is Terminating
