"""`--record`: what is written, what is not, and that nobody feels it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from prism.core.namespace import AdapterLoads
from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity
from prism.engine.frontend import recorder as recorder_module
from prism.engine.frontend.async_llm import _added, _prepare
from prism.engine.frontend.desk import LiveRequest
from prism.engine.frontend.plan import DraftPlan, DraftSegment
from prism.engine.frontend.recorder import Recorder
from prism.engine.recording import Header, RecordedRequest, read_recording
from prism.engine.wire import encode_plan
from prism.errors import DeploymentError
from prism.telemetry.timeline import Admission, RequestTimeline

HEADER = Header(
    started_unix_s=0.0, model="m", block_tokens=16, kv_blocks=100, max_running=8, step_tokens=1024, model_tokens=2048
)
DOCUMENT = list(range(70_000, 70_300))
TOKENS = [1, 2, 3, *DOCUMENT, 4, *DOCUMENT, 5, 6, 7]
"""Three tokens of template, a document with its separator behind it, the document again, a question."""

Ended = Callable[..., LiveRequest]


def _plan(namespace: str = "") -> PromptPlan:
    def segment(kind: SegmentKind, start: int, end: int) -> Segment:
        identity = segment_identity(TOKENS[start:end], namespace)
        return Segment(kind, start, end, identity, identity)

    segments = (
        segment(SegmentKind.DOCUMENT, 3, 303),
        segment(SegmentKind.DOCUMENT, 304, 604),
        segment(SegmentKind.PRIVATE, 604, 607),
    )
    return PromptPlan(namespace, segments, ((3, 304), (304, 604)), (0, 1))


def _live(arrived_at: float) -> LiveRequest:
    timeline = RequestTimeline("id", arrived_at=arrived_at, arrived_wall_ns=0)
    request = timeline.engine_request("r")
    request.admitted(arrived_at + 1, Admission("hot", "", "none", 0, 64, 607, 1, 2, (), 7))
    request.prefilled(arrived_at + 3)
    timeline.first_content_sent(arrived_at + 3.5, "r")
    timeline.finished(arrived_at + 5)
    return LiveRequest(timeline, tokens={"r": (8, 1)})


def _record(path: Path, count: int = 1, namespace: str = "", max_bytes: int = 1 << 20) -> None:
    recorder = Recorder(path, max_bytes, HEADER)
    for number in range(count):
        live = _live(time.monotonic() + number)
        recorder.added(live, "r", TOKENS, namespace, encode_plan(_plan(namespace)))
        recorder.ended(live)
    recorder.close()


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedRequest:
    _record(tmp_path / "traffic.jsonl")
    (request,) = read_recording(tmp_path / "traffic.jsonl")[1]
    return request


def test_spans_cover_the_prompt_and_name_their_kinds(recorded: RecordedRequest) -> None:
    assert [(span.kind, span.tokens, span.movable) for span in recorded.spans] == [
        ("plain", 3, False),
        ("document", 301, True),
        ("document", 300, True),
        ("private", 3, False),
    ]
    assert recorded.prompt_tokens == len(TOKENS)


def test_equal_tokens_have_equal_digests(recorded: RecordedRequest) -> None:
    one, other = recorded.spans[1].digests, recorded.spans[2].digests
    assert len(one) == len(other) == 3
    assert one[:2] == other[:2]
    assert one[2] != other[2]


def test_what_became_of_the_request_is_told(recorded: RecordedRequest) -> None:
    assert (recorded.output_tokens, recorded.outcome, recorded.cached_tokens, recorded.generation) == (
        9,
        "finished",
        64,
        7,
    )
    assert recorded.ttft_s == pytest.approx(3.5)
    assert recorded.admission_wait_s == pytest.approx(1)
    assert recorded.prefill_s == pytest.approx(2)


def test_tenants_share_no_digest_and_are_not_named(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    recorder = Recorder(path, 1 << 20, HEADER)
    for name in ("prism:salt:alice", "prism:salt:bob"):
        live = _live(time.monotonic())
        recorder.added(live, "r", TOKENS, name, encode_plan(_plan(name)))
        recorder.ended(live)
    recorder.close()
    alice, bob = read_recording(path)[1]
    assert alice.tenant != bob.tenant
    assert not {d for span in alice.spans for d in span.digests} & {d for span in bob.spans for d in span.digests}
    assert b"alice" not in path.read_bytes()


def test_two_recordings_cannot_be_compared(tmp_path: Path) -> None:
    for name in "ab":
        _record(tmp_path / name)
    (one,), (other,) = (read_recording(tmp_path / name)[1] for name in "ab")
    assert one.spans[1].digests[0] != other.spans[1].digests[0]


def test_no_token_is_written(tmp_path: Path) -> None:
    _record(tmp_path / "traffic.jsonl")
    text = (tmp_path / "traffic.jsonl").read_text()
    assert not re.search(r"\b70[012]\d\d\b", text)


def test_a_prompt_without_a_plan_is_plain(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "x", 1 << 20, HEADER)
    live = _live(time.monotonic())
    recorder.added(live, "r", TOKENS, "", None)
    recorder.ended(live)
    recorder.close()
    (request,) = read_recording(tmp_path / "x")[1]
    assert [(span.kind, span.tokens, len(span.digests)) for span in request.spans] == [("plain", 607, 5)]


def test_files_stay_below_the_bound_and_each_can_be_read(tmp_path: Path) -> None:
    _record(tmp_path / "x", count=200, max_bytes=20_000)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["x", "x.1"]
    assert sum(file.stat().st_size for file in files) <= 20_000
    kept = [request for file in files for request in read_recording(file)[1]]
    assert 10 < len(kept) < 200
    assert max(request.at_s for request in kept) == pytest.approx(199, abs=1)


def test_only_the_owner_reads_it_and_a_second_start_keeps_the_first(tmp_path: Path) -> None:
    _record(tmp_path / "x")
    _record(tmp_path / "x", count=2)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert [len(list(read_recording(tmp_path / name)[1])) for name in ("x", "x.1")] == [2, 1]


def test_a_folder_that_is_not_there_is_said_at_start(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="name a file in a folder that this process can write to"):
        Recorder(tmp_path / "nowhere" / "x", 1 << 20, HEADER)


@pytest.fixture
def stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Recorder, threading.Event]]:
    """A recorder whose disk does not answer until the event is set: a pipe that nobody reads."""
    monkeypatch.setattr(recorder_module, "QUEUED_REQUESTS", 4)
    release = threading.Event()
    recorder = Recorder(tmp_path / "x", 1 << 20, HEADER)
    live = _live(time.monotonic())
    recorder.added(live, "r", _Slow(TOKENS, release), "", None)  # type: ignore[arg-type]
    recorder.ended(live)
    yield recorder, release
    release.set()
    recorder.close()


def _request(tokens: list[int] | None, salt: str | None = None) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id="r",
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=SamplingParams(),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=salt,
        data_parallel_rank=None,
    )


def _recorded_of(path: Path, request: EngineCoreRequest, draft: DraftPlan | None) -> list[RecordedRequest]:
    _prepare(request, draft, AdapterLoads())
    recorder, live = Recorder(path, 1 << 20, HEADER), _live(time.monotonic())
    recorder.added(live, *_added(request))
    recorder.ended(live)
    recorder.close()
    return list(read_recording(path)[1])


def test_what_crosses_to_the_engine_is_what_is_recorded(tmp_path: Path) -> None:
    draft = DraftPlan((DraftSegment(SegmentKind.DOCUMENT, 3, 303), DraftSegment(SegmentKind.PRIVATE, 604, 607)))
    (request,) = _recorded_of(tmp_path / "x", _request(TOKENS, "alice"), draft)
    assert [span.kind for span in request.spans] == ["plain", "document", "plain", "private"]
    assert request.prompt_tokens == len(TOKENS)
    assert request.tenant


def test_a_prompt_of_embeddings_is_not_recorded(tmp_path: Path) -> None:
    assert _recorded_of(tmp_path / "x", _request(None), None) == []


class _Slow:
    """Tokens that can be looked at only when the event is set."""

    def __init__(self, tokens: list[int], release: threading.Event) -> None:
        self._tokens, self._release = tokens, release

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        self._release.wait(30)
        return len(self._tokens)

    def __getitem__(self, where: slice) -> list[int]:
        return self._tokens[where]


def test_a_slow_disk_drops_and_counts_and_never_waits(stuck: tuple[Recorder, threading.Event]) -> None:
    recorder, _ = stuck
    began = time.monotonic()
    for _ in range(20):
        live = _live(time.monotonic())
        recorder.added(live, "r", TOKENS, "", None)
        recorder.ended(live)
    assert time.monotonic() - began < 1
    assert recorder.dropped >= 15


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(tmp_path / "x", 1 << 20, HEADER)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, recorder._file._file.fileno())
    os.close(full)
    for _ in range(3):
        live = _live(time.monotonic())
        recorder.added(live, "r", TOKENS, "", None)
        recorder.ended(live)
    limit = time.monotonic() + 5
    while not recorder.failed and time.monotonic() < limit:
        time.sleep(0.01)
    assert recorder.failed
    assert "The recording ended" in caplog.text
