"""`prism sim` says what it was asked, and what it can be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prism.bench.sim import app, p99_ratio
from prism.bench.summary import Summary


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_arms_of_one_seed_see_the_same_requests_and_all_stands_in_the_json(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    asked = ("--load", "4", "--seconds", "3", "--arm", "stock", "--arm", "fcfs", "--json", str(out))
    code, _ = invoke(*asked, "--model", "llama2-13b")
    assert code == 0
    stock, fcfs = json.loads(out.read_text())
    assert (stock["arm"], fcfs["arm"]) == ("stock", "fcfs")
    assert stock["summary"]["requests"] == fcfs["summary"]["requests"] > 5
    assert stock["summary"]["hit_percent"] == fcfs["summary"]["hit_percent"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--arm", "nobody"), "no arm 'nobody'"),
        (("--scenario", "nothing"), "no scenario 'nothing'"),
        (("--model", "no-such.yaml"), "no model 'no-such.yaml'"),
        (("--scenario", "agents", "--model", "llama2-13b"), "give --load"),
        (("--charge", "twice"), "no charge 'twice'"),
        (("--charge", "measured", "--arm", "prism"), "add --arm stock"),
    ],
)
def test_what_can_not_be_asked_is_refused_with_what_can(arguments: tuple[str, ...], said: str) -> None:
    code, output = invoke(*arguments)
    assert code == 2
    assert said in " ".join(output.replace("│", " ").split())


def with_p99(p99: float | None) -> Summary:
    return Summary(900, 0, 20.0, None, None, None, p99, None, 0.0, 0.0, 0.0, 0.0, 0, 0.0)


def test_a_ratio_is_taken_seed_by_seed() -> None:
    interval = p99_ratio([with_p99(p99) for p99 in (0.5, 1.0, 1.5)], [with_p99(p99) for p99 in (1.0, 2.0, 3.0)])
    assert interval is not None
    assert (interval.low, interval.value, interval.high) == pytest.approx((0.5, 0.5, 0.5))


def test_two_seeds_make_no_interval() -> None:
    assert p99_ratio([with_p99(1.0)] * 2, [with_p99(2.0)] * 2) is None


def test_an_infinite_or_missing_p99_makes_no_interval() -> None:
    good = [with_p99(1.0)] * 3
    assert p99_ratio([with_p99(float("inf")), *good[:2]], good) is None
    assert p99_ratio([with_p99(None), *good[:2]], good) is None
