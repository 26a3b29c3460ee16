"""Asks predictor pods over their admin port what they obey and how they do, many at once, in one thread of its own.

A pod that does not obey yet what it should is asked again and again, the others once in a while. Whoever wants to know
reads the last answer; nobody waits for a pod.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from prism_operator.figures import Figures, read_figures, total
from prism_operator.jitter import between
from prism_operator.metrics import ASKED, WATCHED_PODS
from prism_operator.objects import Key

_logger = logging.getLogger(__name__)

AT_ONCE: Final = 64
ANSWER_SECONDS: Final = 3.0
CONNECT_SECONDS: Final = 1.5
SOON_SECONDS: Final = 2.0
BRISK_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 30.0
MOST_EAGER_ASKS_A_SECOND: Final = 100.0

LIVE_SECONDS: Final = 300.0
"""The window of the live figures."""

_SNAPSHOT_SECONDS = 55.0
_TICK_SECONDS = 0.2

PodKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod to be asked, and the digest of the settings that it should obey."""

    address: str
    life: str
    digest: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A pod's last answer.

    Attributes:
        asked: whether it has been asked at all, whatever came of it.
        digest: of the settings that all of its engines obey.
        refusal: why it does not take the document that it sees.
        trouble: why it could not be asked.
        figures: its counters, taken at Unix time `taken`.
    """

    asked: bool = False
    digest: str = ""
    refusal: str = ""
    trouble: str = ""
    figures: Figures | None = None
    taken: float = 0.0


@dataclass(slots=True)
class _Pod:
    config: Key
    wanted: Wanted
    due: float
    brisk: bool = False
    busy: bool = False
    silent: int = 0
    heard: Heard = field(default_factory=Heard)
    past: deque[tuple[float, Figures]] = field(
        default_factory=lambda: deque(maxlen=int(LIVE_SECONDS / _SNAPSHOT_SECONDS) + 1)
    )


class Predictors(threading.Thread):
    """The pods that are asked, and what they said. Thread-safe."""

    def __init__(self, admin_port: int, ask_seconds: float, changed: Callable[[Key], None]) -> None:
        """`changed(config)` is called when a pod of the config's targets says something else than before."""
        super().__init__(name="predictors", daemon=True)
        self._admin_port = admin_port
        self._ask_seconds = ask_seconds
        self._changed = changed
        self._lock = threading.Lock()
        self._pods: dict[PodKey, _Pod] = {}
        self._of_config: dict[Key, frozenset[PodKey]] = {}
        self._stopping = threading.Event()

    def watch(self, config: Key, wanted: Mapping[PodKey, Wanted], *, brisk: bool) -> None:
        """Replaces the pods that are asked on behalf of a config; `brisk` asks them every few seconds."""
        now = time.monotonic()
        with self._lock:
            for key in self._of_config.get(config, frozenset()) - wanted.keys():
                if (pod := self._pods.get(key)) is not None and pod.config == config:
                    del self._pods[key]
            self._of_config[config] = frozenset(wanted)
            for key, one in wanted.items():
                self._want(config, key, one, brisk, now)
            WATCHED_PODS.set(len(self._pods))

    def forget(self, config: Key) -> None:
        """Asks none of the config's pods any more."""
        self.watch(config, {}, brisk=False)
        with self._lock:
            self._of_config.pop(config, None)

    def heard(self, pod: PodKey) -> Heard:
        """The last answer of a pod."""
        with self._lock:
            found = self._pods.get(pod)
            return found.heard if found is not None else Heard()

    def window(self, pods: Iterable[PodKey]) -> tuple[Figures, float]:
        """What came to pass on these pods in the last minutes, and the seconds that the longest watched one covers."""
        spans = []
        with self._lock:
            for key in pods:
                pod = self._pods.get(key)
                if pod is not None and pod.past and pod.heard.figures is not None:
                    spans.append((pod.past[0], (pod.heard.taken, pod.heard.figures)))
        between = [(late - early, after.since(before)) for (early, before), (late, after) in spans]
        known = [(seconds, figures) for seconds, figures in between if figures is not None]
        return total(figures for _, figures in known), max((seconds for seconds, _ in known), default=0.0)

    def stop(self) -> None:
        """Ends the thread within a moment."""
        self._stopping.set()

    def run(self) -> None:
        asyncio.run(self._ask_for_ever())

    def _want(self, config: Key, key: PodKey, wanted: Wanted, brisk: bool, now: float) -> None:
        pod = self._pods.get(key)
        if pod is None or pod.wanted.address != wanted.address or pod.wanted.life != wanted.life:
            self._pods[key] = _Pod(config, wanted, now, brisk)
            return
        hurry = pod.wanted.digest != wanted.digest or (brisk and not pod.brisk)
        pod.config, pod.wanted, pod.brisk = config, wanted, brisk
        if hurry:
            pod.due = min(pod.due, now)

    async def _ask_for_ever(self) -> None:
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, pool=None)
        # Pods are reached by their addresses: a proxy of the environment's is not meant for them.
        async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as client:
            asking: set[asyncio.Task[None]] = set()
            while not self._stopping.is_set():
                for key, address in self._due(AT_ONCE - len(asking)):
                    task = asyncio.create_task(self._ask(client, key, address))
                    asking.add(task)
                    task.add_done_callback(asking.discard)
                await asyncio.sleep(_TICK_SECONDS if len(asking) < AT_ONCE else _TICK_SECONDS / 10)

    def _due(self, at_most: int) -> list[tuple[PodKey, str]]:
        now = time.monotonic()
        with self._lock:
            due = sorted((pod.due, key) for key, pod in self._pods.items() if pod.due <= now and not pod.busy)
            for _, key in due[:at_most]:
                self._pods[key].busy = True
            return [(key, self._pods[key].wanted.address) for _, key in due[:at_most]]

    async def _ask(self, client: httpx.AsyncClient, key: PodKey, address: str) -> None:
        host = f"[{address}]" if ":" in address else address
        base = f"http://{host}:{self._admin_port}/prism/v1"
        try:
            heard = await _answer(client, base)
        except Exception as error:
            _logger.exception("%s could not be asked", base)
            heard = Heard(True, trouble=f"{base} could not be asked: {error}")
        with self._lock:
            pod = self._pods.get(key)
            if pod is None or pod.wanted.address != address:
                return
            pod.silent = pod.silent + 1 if heard.trouble else 0
            answered = not heard.trouble
            if pod.silent == 1 and pod.heard.asked and not pod.heard.trouble:
                # One answer that does not come is a moment's: what was said before holds until the next, soon.
                heard = pod.heard
            before, pod.heard, pod.busy = pod.heard, heard, False
            pod.due = time.monotonic() + self._pause(pod)
            _keep(pod)
            news = _told(before) != _told(heard)
            config = pod.config
        ASKED.labels("answered" if answered else "unreachable").inc()
        if news:
            self._changed(config)

    def _pause(self, pod: _Pod) -> float:
        """Seconds until the pod is asked again; holds the lock."""
        if pod.silent:
            return float(min(SOON_SECONDS * 2 ** min(pod.silent - 1, 10), LONGEST_PAUSE_SECONDS)) * _spread()
        if pod.heard.digest != pod.wanted.digest:
            return max(SOON_SECONDS, len(self._pods) / MOST_EAGER_ASKS_A_SECOND) * _spread()
        return (min(BRISK_SECONDS, self._ask_seconds) if pod.brisk else self._ask_seconds) * _spread()


async def _answer(client: httpx.AsyncClient, base: str) -> Heard:
    try:
        answer = (await client.get(f"{base}/settings")).raise_for_status().json()
        metrics = (await client.get(f"{base}/metrics")).raise_for_status().text
        taken = time.time()
        figures = read_figures(metrics)
        return Heard(True, str(answer["digest"]), _refusal(answer), "", figures, taken)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = str(error) or type(error).__name__
        return Heard(True, trouble=f"the admin port {base} does not answer ({said}): is it closed to the operator?")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Heard(True, trouble=f"the answer of {base} is not understood ({error}): are both of one version?")


def _refusal(answer: dict[str, Any]) -> str:
    refusal = answer.get("last_refusal")
    return str(refusal["message"]) if isinstance(refusal, dict) else ""


def _keep(pod: _Pod) -> None:
    """Keeps counters about a minute apart for as long as the live window is."""
    figures, taken = pod.heard.figures, pod.heard.taken
    if figures is None:
        return
    if pod.past and figures.since(pod.past[-1][1]) is None:
        pod.past.clear()
    while pod.past and taken - pod.past[0][0] > LIVE_SECONDS + _SNAPSHOT_SECONDS:
        pod.past.popleft()
    if not pod.past or taken - pod.past[-1][0] >= _SNAPSHOT_SECONDS:
        pod.past.append((taken, figures))


def _told(heard: Heard) -> tuple[bool, str, str, bool]:
    return heard.asked, heard.digest, heard.refusal, bool(heard.trouble)


def _spread() -> float:
    """Keeps pods that began together from being asked together for ever."""
    return between(0.9, 1.1)
