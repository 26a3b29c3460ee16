"""A recording of traffic: what it takes to simulate other policies on it, and no word of anybody's prompt.

JSON lines. The first of each file is a `Header`, every other one a `RecordedRequest`:

    {"prism_recording":1,"started_unix_s":1764470000.0,"model":"m","block_tokens":16,…}
    {"at_s":1.250,"tenant":"","spans":[["system",200,["qL0…","8Zk…"]],["plain",5,["x1…"]],…],"output_tokens":87,…}

A prompt is its spans in order. A span's digests are of `CHUNK_TOKENS` tokens each (the last of what is left), under a
key that is drawn when the recording begins and never written: equal digests are equal tokens of one tenant and adapter,
and nobody can find out which by guessing. Digests of two recordings cannot be compared.
"""

from __future__ import annotations

import hashlib
from array import array
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from prism.core.segments import PromptPlan
from prism.errors import DeploymentError

FORMAT = 1
CHUNK_TOKENS = 128
PLAIN = "plain"
"""Kind of the tokens that belong to no segment: template text, prompts without marks."""

_DIGEST_BYTES = 9  # twelve characters of base64, without padding


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that the traffic was recorded on.

    Attributes:
        started_unix_s: when the recording began; moments count from there.
        model: its served name.
        block_tokens, kv_blocks: of its KV cache; 0 blocks where that is unknown.
        max_running, step_tokens, model_tokens: vLLM's `max_num_seqs`, `max_num_batched_tokens`, `max_model_len`.
    """

    prism_recording: int = FORMAT
    started_unix_s: float
    model: str
    block_tokens: int
    kv_blocks: int
    max_running: int
    step_tokens: int
    model_tokens: int


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive tokens of a prompt: their kind, how many, their digests, and whether they may change places."""

    kind: str
    tokens: int
    digests: list[str]
    movable: bool = False


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of the engine.

    Attributes:
        at_s: arrival, in seconds since the recording began.
        tenant: digest of its cache salt and adapter; empty without either.
        spans: the whole prompt as the client wrote it.
        output_tokens: how many it was answered with.
        outcome: how it ended.
        ttft_s, admission_wait_s, prefill_s: as measured; None where it had no first token or a fact was lost.
        cached_tokens: of the prompt, at its admission; None if it had none.
        generation: settings generation of its admission.
    """

    at_s: float
    tenant: str = ""
    spans: list[Span]
    output_tokens: int
    outcome: str = "finished"
    ttft_s: float | None = None
    admission_wait_s: float | None = None
    prefill_s: float | None = None
    cached_tokens: int | None = None
    generation: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(span.tokens for span in self.spans)


class Digests:
    """Digests under one key.

    Args:
        key: up to 64 bytes; whoever has it can test guesses.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def tenant(self, namespace: str) -> str:
        return self._of(b"tenant", namespace.encode()) if namespace else ""

    def spans(self, tokens: Sequence[int], plan: PromptPlan) -> list[Span]:
        """A whole prompt; a segment that may move counts with the separator that moves with it."""
        runs = dict(zip(plan.movable_segments, plan.movable, strict=True))
        found: list[Span] = []
        cursor = 0
        for index, segment in enumerate(plan.segments):
            start, end = runs.get(index, (segment.start, segment.end))
            if cursor < start:
                found.append(self._span(PLAIN, tokens[cursor:start], plan.namespace))
            found.append(self._span(segment.kind.value, tokens[start:end], plan.namespace, index in runs))
            cursor = end
        if cursor < len(tokens):
            found.append(self._span(PLAIN, tokens[cursor:], plan.namespace))
        return found

    def _span(self, kind: str, tokens: Sequence[int], namespace: str, movable: bool = False) -> Span:
        name = namespace.encode()
        chunks = (tokens[start : start + CHUNK_TOKENS] for start in range(0, len(tokens), CHUNK_TOKENS))
        return Span(kind, len(tokens), [self._of(name, array("I", chunk).tobytes()) for chunk in chunks], movable)

    def _of(self, name: bytes, data: bytes) -> str:
        digest = hashlib.blake2b(len(name).to_bytes(4, "little") + name, digest_size=_DIGEST_BYTES, key=self._key)
        digest.update(data)
        return urlsafe_b64encode(digest.digest()).decode()


encode_line = msgspec.json.Encoder().encode
_header = msgspec.json.Decoder(Header)
_request = msgspec.json.Decoder(RecordedRequest)


def read_recording(path: Path) -> tuple[Header, Iterator[RecordedRequest]]:
    """A recording's header and its requests, in the order in which they ended.

    A last line that was cut off (the server was killed while it wrote) is left out.

    Raises:
        DeploymentError: it is not a recording of this version, or a line is none; when that line is reached.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        header = _header.decode(lines[0])
    except (OSError, IndexError, msgspec.MsgspecError) as error:
        raise DeploymentError(f"{path} is not a recording of `prism serve --record`: {error}") from error
    if header.prism_recording != FORMAT:
        raise DeploymentError(f"{path} is of format {header.prism_recording}, this version reads {FORMAT}")
    return header, _requests(path, lines[1:])


def _requests(path: Path, lines: Sequence[bytes]) -> Iterator[RecordedRequest]:
    for number, line in enumerate(lines, 2):
        try:
            yield _request.decode(line)
        except msgspec.MsgspecError as error:
            if number == len(lines) + 1 and not line.endswith(b"\n"):
                return
            raise DeploymentError(f"{path}, line {number}: {error}") from error
