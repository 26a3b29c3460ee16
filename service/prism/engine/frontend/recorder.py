"""`--record`: a file of what was asked, for `prism replay` (the form: `prism.engine.recording`).

It must never be felt. The event loop only puts finished requests into a bounded queue; a thread digests and writes.
What finds the queue full is dropped and counted, and a disk that fails ends the recording and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from vllm.config import VllmConfig

from prism.core.segments import PromptPlan
from prism.engine.frontend.desk import LiveRequest
from prism.engine.recording import Digests, Header, RecordedRequest, encode_line
from prism.engine.wire import decode_plan
from prism.errors import DeploymentError
from prism.telemetry.timeline import EngineRequest, RequestTimeline

_logger = logging.getLogger(__name__)

QUEUED_REQUESTS = 4096
_CLOSE_SECONDS = 5.0
_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt on its way: its tokens and its plan, as they crossed to EngineCore."""

    tokens: Sequence[int]
    namespace: str
    plan: bytes | None


def recording_header(config: VllmConfig) -> Header:
    """What a recording says of the engine that it is made on."""
    cache, scheduler, model = config.cache_config, config.scheduler_config, config.model_config
    names = model.served_model_name
    return Header(
        started_unix_s=time.time(),
        model=(names[0] if isinstance(names, list) else names) or model.model,
        block_tokens=cache.block_size,
        kv_blocks=cache.num_gpu_blocks or 0,
        max_running=scheduler.max_num_seqs,
        step_tokens=scheduler.max_num_batched_tokens,
        model_tokens=model.max_model_len,
    )


class Recorder:
    """Writes one line for each request of the engine that has ended.

    Args:
        path: the file; when it has half of `max_bytes`, it becomes `path` with `.1` behind it (replacing that) and a
            new one is begun.
        max_bytes: of both together.
        header: what stands first in each file.

    Attributes:
        dropped: requests that found the queue full.
        failed: the disk did not take a line, and the recording is over.

    Raises:
        DeploymentError: the file cannot be written.
    """

    def __init__(self, path: Path, max_bytes: int, header: Header) -> None:
        self.dropped = 0
        self.failed = False
        self._started_at = time.monotonic()
        self._header = msgspec.structs.replace(header, started_unix_s=time.time())
        self._digests = Digests(secrets.token_bytes(_KEY_BYTES))
        self._prompts: dict[LiveRequest, dict[str, _Prompt]] = {}
        self._queue: queue.Queue[tuple[LiveRequest, dict[str, _Prompt]] | None] = queue.Queue(QUEUED_REQUESTS)
        self._file = _RotatedFile(path, max_bytes // 2, encode_line(self._header) + b"\n")
        self._thread = threading.Thread(target=self._write_all, name="prism-recorder", daemon=True)
        self._thread.start()

    def added(self, live: LiveRequest, name: str, tokens: Sequence[int], namespace: str, plan: bytes | None) -> None:
        """A request was handed to the engine under this internal id, with this prompt; `plan` as encoded for it.

        A prompt of embeddings alone has no tokens, and is not recorded.
        """
        if tokens:
            self._prompts.setdefault(live, {})[name] = _Prompt(tokens, namespace, plan)

    def ended(self, live: LiveRequest) -> None:
        """An HTTP request has ended and all of its facts have come; never waits."""
        prompts = self._prompts.pop(live, None)
        if not prompts or self.failed:
            return
        try:
            self._queue.put_nowait((live, prompts))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Write what is queued, for a few seconds at most."""
        try:
            self._queue.put(None, timeout=_CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(_CLOSE_SECONDS)
        if self.dropped:
            _logger.warning("%d requests are not in the recording: they ended faster than it wrote.", self.dropped)

    def _write_all(self) -> None:
        with self._file:
            while (item := self._queue.get()) is not None:
                live, prompts = item
                try:
                    for name, prompt in prompts.items():
                        self._file.write(encode_line(self._line(live, name, prompt)) + b"\n")
                except OSError as error:
                    self.failed = True
                    _logger.error("The recording ended: %s. Requests go on.", error)
                    return

    def _line(self, live: LiveRequest, name: str, prompt: _Prompt) -> RecordedRequest:
        plan = _plan_of(prompt)
        timeline, request = live.timeline, live.timeline.engine_request(name)
        parts = _parts(timeline, request)
        return RecordedRequest(
            at_s=round(max(0.0, timeline.arrived_at - self._started_at), 6),
            tenant=self._digests.tenant(prompt.namespace),
            spans=self._digests.spans(prompt.tokens, plan),
            output_tokens=sum(live.tokens.get(name, (0, 0))),
            outcome=str(timeline.outcome or "finished"),
            ttft_s=parts.get("ttft_s"),
            admission_wait_s=parts.get("admission_wait_s"),
            prefill_s=parts.get("prefill_s"),
            cached_tokens=request.admission.cached_tokens if request.admission else None,
            generation=request.admission.generation if request.admission else None,
        )


def _plan_of(prompt: _Prompt) -> PromptPlan:
    if prompt.plan is None:
        return PromptPlan(prompt.namespace)
    return decode_plan(prompt.plan, len(prompt.tokens))


def _parts(timeline: RequestTimeline, request: EngineRequest) -> dict[str, float]:
    """Seconds that were measured; those of the HTTP request belong to its leading engine request alone."""
    if timeline.lead is not request:
        return {}
    found = {"ttft_s": timeline.ttft_us / 1e6} if timeline.ttft_us is not None else {}
    ttft = timeline.ttft()
    if ttft is not None:
        found |= {"admission_wait_s": ttft.admission_wait, "prefill_s": ttft.prefill}
    return found


class _RotatedFile:
    """A file that only its owner can read, and the one before it.

    Args:
        head: first line of each.
    """

    def __init__(self, path: Path, max_bytes: int, head: bytes) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._head = head
        try:
            self._file = self._open()
        except OSError as error:
            raise DeploymentError(
                f"--record {path}: {error.strerror}: name a file in a folder that this process can write to"
            ) from error

    def __enter__(self) -> _RotatedFile:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take is lost already
            self._file.close()

    def write(self, line: bytes) -> None:
        """Raises `OSError`."""
        if self._file.tell() + len(line) > self._max_bytes:
            self._file.close()
            self._path.replace(_beside(self._path))
            self._file = self._open()
        self._file.write(line)
        self._file.flush()

    def _open(self) -> BinaryIO:
        if self._path.exists():
            self._path.replace(_beside(self._path))
        file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        file.write(self._head)
        file.flush()
        return file


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
