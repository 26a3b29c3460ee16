"""Recorded traffic as a workload for the simulator.

A recording holds digests in place of tokens. Each digest becomes made-up tokens that depend on nothing else, so two
prompts share in the simulator what they shared in the recording, to the chunk of 128 tokens; lengths, arrivals, kinds,
tenants and answer lengths are the recorded ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from prism.bench.workloads import VOCABULARY, Arrival, Workload
from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity
from prism.engine.enginecore.synthetic import SyntheticRequest
from prism.engine.recording import CHUNK_TOKENS, PLAIN, Header, RecordedRequest, Span, read_recording
from prism.errors import DeploymentError

_KEPT_CHUNKS = 1 << 16


@dataclass(frozen=True, slots=True)
class Traffic:
    """Recorded requests in order of arrival; `at_s` counts from the first of them.

    Attributes:
        header: that of the first file.
    """

    header: Header
    requests: tuple[RecordedRequest, ...]

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at_s if self.requests else 0.0

    def workload(self, speed: float = 1.0) -> Workload:
        """The traffic for the simulator, `speed` times as fast."""
        return Workload(
            tuple(
                Arrival(one.at_s / speed, _synthetic(f"recorded-{number}", one))
                for number, one in enumerate(self.requests)
            )
        )


def read_traffic(paths: Sequence[Path]) -> Traffic:
    """All requests of one recording's files, or of several recordings that share nothing.

    Raises:
        DeploymentError: a file is no recording, or there are no requests in them.
    """
    read = [read_recording(path) for path in paths]
    timed = sorted(
        ((header.started_unix_s + one.at_s, one) for header, requests in read for one in requests),
        key=lambda pair: pair[0],
    )
    if not timed:
        raise DeploymentError(f"no requests are recorded in {', '.join(map(str, paths))}")
    first = timed[0][0]
    return Traffic(read[0][0], tuple(msgspec.structs.replace(one, at_s=at - first) for at, one in timed))


def _synthetic(name: str, request: RecordedRequest) -> SyntheticRequest:
    tokens: list[int] = []
    segments: list[Segment] = []
    movable: list[int] = []
    for span in request.spans:
        start = len(tokens)
        tokens.extend(span_tokens(span))
        if span.kind == PLAIN:
            continue
        if span.movable:
            movable.append(len(segments))
        identity = segment_identity(tokens[start:], request.tenant)
        segments.append(Segment(SegmentKind(span.kind), start, len(tokens), identity, identity))
    runs = tuple((segments[index].start, segments[index].end) for index in movable)
    plan = PromptPlan(request.tenant, tuple(segments), runs, tuple(movable))
    return SyntheticRequest(name, tokens, max(1, request.output_tokens), plan, request.tenant or None)


def span_tokens(span: Span) -> Iterable[int]:
    """Made-up tokens in place of a span's own."""
    left = span.tokens
    for digest in span.digests:
        yield from _chunk(digest, min(left, CHUNK_TOKENS))
        left -= CHUNK_TOKENS


@lru_cache(_KEPT_CHUNKS)
def _chunk(digest: str, count: int) -> tuple[int, ...]:
    drawn = np.frombuffer(hashlib.shake_256(digest.encode()).digest(4 * count), dtype="<u4") % VOCABULARY
    return tuple(drawn.tolist())
