"""A recording comes back as traffic that shares what the recorded one shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism.bench.recorded_traffic import read_traffic
from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity
from prism.engine.enginecore.synthetic import SyntheticRequest
from prism.engine.recording import Digests, Header, RecordedRequest, encode_line, read_recording
from prism.errors import DeploymentError

HEADER = Header(
    started_unix_s=100.0, model="m", block_tokens=16, kv_blocks=100, max_running=8, step_tokens=1024, model_tokens=2048
)
DIGESTS = Digests(b"key")
SYSTEM, DOCUMENT = list(range(300)), list(range(1000, 1250))


def _request(at_s: float, question: list[int], tenant: str = "", document: list[int] | None = None) -> RecordedRequest:
    document = document or DOCUMENT
    tokens = [*SYSTEM, *document, *DOCUMENT[:40], *question]
    bounds = [0, len(SYSTEM), len(SYSTEM) + len(document), len(SYSTEM) + len(document) + 40, len(tokens)]
    kinds = (SegmentKind.SYSTEM, SegmentKind.DOCUMENT, SegmentKind.DOCUMENT, SegmentKind.PRIVATE)
    segments = tuple(
        Segment(kind, start, end, segment_identity(tokens[start:end], tenant), b"")
        for kind, start, end in zip(kinds, bounds, bounds[1:], strict=False)
    )
    plan = PromptPlan(tenant, segments, tuple((s.start, s.end) for s in segments[1:3]), (1, 2))
    spans = DIGESTS.spans(tokens, plan)
    return RecordedRequest(at_s=at_s, tenant=DIGESTS.tenant(tenant), spans=spans, output_tokens=7)


def _file(path: Path, *requests: RecordedRequest, header: Header = HEADER) -> Path:
    path.write_bytes(b"".join(encode_line(line) + b"\n" for line in (header, *requests)))
    return path


def _played(folder: Path, *requests: RecordedRequest) -> list[SyntheticRequest]:
    return [one.request for one in read_traffic([_file(folder / "x", *requests)]).workload().arrivals]


def _common(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    request = _request(1.5, [7, 8])
    header, requests = read_recording(_file(tmp_path / "x", request))
    assert (header, list(requests)) == (HEADER, [request])


def test_lengths_kinds_and_answers_are_the_recorded_ones(tmp_path: Path) -> None:
    (request,) = _played(tmp_path, _request(0, [7] * 9))
    assert request.plan is not None
    assert [(s.kind, s.start, s.end) for s in request.plan.segments] == [
        ("system", 0, 300),
        ("document", 300, 550),
        ("document", 550, 590),
        ("private", 590, 599),
    ]
    assert (len(request.tokens), request.output_tokens, request.plan.movable) == (599, 7, ((300, 550), (550, 590)))


def test_prompts_share_what_they_shared(tmp_path: Path) -> None:
    one, other = _played(tmp_path, _request(0, [7] * 9), _request(1, [8] * 9))
    assert _common(one.tokens, other.tokens) == 590
    assert one.plan is not None
    assert other.plan is not None
    assert [a.identity == b.identity for a, b in zip(one.plan.segments, other.plan.segments, strict=True)] == [
        True,
        True,
        True,
        False,
    ]


def test_prompts_share_no_more_than_they_shared(tmp_path: Path) -> None:
    changed = [*DOCUMENT[:200], *range(5000, 5050)]
    one, other = _played(tmp_path, _request(0, [7] * 9), _request(1, [7] * 9, document=changed))
    assert _common(one.tokens, other.tokens) == 300 + 128


def test_tenants_share_nothing(tmp_path: Path) -> None:
    one, other = _played(tmp_path, _request(0, [7] * 9, "alice"), _request(1, [7] * 9, "bob"))
    assert one.cache_salt != other.cache_salt
    assert _common(one.tokens, other.tokens) == 0


def test_arrivals_are_in_order_from_zero_and_as_fast_as_asked(tmp_path: Path) -> None:
    later = Header(**{**{name: getattr(HEADER, name) for name in HEADER.__struct_fields__}, "started_unix_s": 110.0})
    files = [
        _file(tmp_path / "b", _request(1.0, [1]), header=later),
        _file(tmp_path / "a", _request(9.0, [2]), _request(5.0, [3])),
    ]
    traffic = read_traffic(files)
    assert [one.at_s for one in traffic.requests] == [0.0, 4.0, 6.0]
    assert [one.at_s for one in traffic.workload(speed=2).arrivals] == [0.0, 2.0, 3.0]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = _file(tmp_path / "x", _request(0, [1]), _request(1, [2]))
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_traffic([path]).requests) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a recording"),
        ('{"some": "json"}\n', "is not a recording"),
        (encode_line(HEADER).decode().replace('"prism_recording":1', '"prism_recording":9'), "format 9"),
        (encode_line(HEADER).decode() + "\n", "no requests are recorded"),
        (encode_line(HEADER).decode() + "\nnonsense\n", "line 2"),
    ],
)
def test_what_is_no_recording_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(DeploymentError, match=said):
        read_traffic([tmp_path / "x"])
