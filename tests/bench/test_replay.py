"""What other policies would have done with recorded traffic."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from prism.bench.arms import parse_arm
from prism.bench.arrivals import poisson_times
from prism.bench.recorded_traffic import read_traffic
from prism.bench.replay import AS_RECORDED, Replay, replay_command
from prism.bench.workloads import Corpus, RagShape, rag
from prism.engine.recording import Digests, Header, RecordedRequest, encode_line
from prism.errors import DeploymentError

HEADER = Header(
    started_unix_s=0.0, model="m", block_tokens=16, kv_blocks=1500, max_running=64, step_tokens=8192, model_tokens=8192
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Retrieval requests as a server would have recorded them: 40 documents, three a request, 12 a second, 20 s."""
    corpus = Corpus.drawn(1, documents=40, longest=300)
    shape = RagShape(per_request=(3, 3), output_tokens=(8, 16))
    digests, rng = Digests(b"key"), random.Random(1)
    lines: list[Header | RecordedRequest] = [HEADER]
    for arrival in rag(corpus, shape, poisson_times(random.Random(1), 12, 20), 1).arrivals:
        request = arrival.request
        assert request.plan is not None
        spans = digests.spans(request.tokens, request.plan)
        ttft = rng.uniform(0.1, 0.3)
        lines.append(
            RecordedRequest(
                at_s=arrival.at_s, spans=spans, output_tokens=request.output_tokens, ttft_s=ttft, cached_tokens=100
            )
        )
    path = tmp_path_factory.mktemp("replay") / "traffic.jsonl"
    path.write_bytes(b"".join(encode_line(line) + b"\n" for line in lines))
    return path


def _replay(path: Path, *arms: str, **fields: Any) -> Replay:
    return Replay(read_traffic([path]), tuple(map(parse_arm, arms)), **fields)


def test_recorded_figures_stand_beside_each_arms(recording: Path) -> None:
    played = _replay(recording, "stock", "prism").run()
    assert [one.arm for one in played] == [AS_RECORDED, "stock", "prism"]
    assert len({one.requests for one in played}) == 1
    assert 0.1 < played[0].ttft_s["P50"] < 0.3
    assert played[2].ratios["P50"].high < 2


def test_an_order_of_documents_that_helped_helps_in_the_replay(recording: Path) -> None:
    _, stock, prism = _replay(recording, "stock", "prism").run()
    assert prism.hit_rate > stock.hit_rate + 0.05


def test_stock_settings_replay_as_stock(recording: Path) -> None:
    _, stock, fcfs = _replay(recording, "stock", "fcfs").run()
    assert (fcfs.ttft_s, fcfs.hit_rate) == (stock.ttft_s, stock.hit_rate)


def test_the_cache_is_the_recorded_engines_unless_said_otherwise(recording: Path) -> None:
    assert _replay(recording, "stock").limits().kv_blocks == 1501
    assert _replay(recording, "stock", kv_tokens=16_000).limits().kv_blocks == 1001


def test_faster_arrivals_wait_longer(recording: Path) -> None:
    (_, once), (_, often) = (_replay(recording, "stock", speed=speed).run() for speed in (1.0, 20.0))
    assert often.mean_ttft_s > 2 * once.mean_ttft_s


def test_a_cache_that_holds_no_prompt_is_said(recording: Path) -> None:
    with pytest.raises(DeploymentError, match="does not hold the longest request"):
        _replay(recording, "stock", kv_tokens=160).run()


def _invoke(*arguments: str) -> Any:
    command = typer.Typer()
    command.command()(replay_command)
    return CliRunner().invoke(command, arguments)


def test_the_command_tells_and_writes_all_arms(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    done = _invoke(str(recording), "--policy", "stock", "--policy", "prism", "--json", str(out))
    assert done.exit_code == 0, done.output
    assert [one["arm"] for one in json.loads(out.read_text())] == [AS_RECORDED, "stock", "prism"]
    assert "prism over stock: mean × " in " ".join(done.output.split())


def test_a_policy_that_is_none_is_said_with_those_there_are(recording: Path) -> None:
    done = _invoke(str(recording), "--policy", "nonsense")
    assert done.exit_code == 1
    assert "no arm 'nonsense'" in " ".join(done.output.split())
