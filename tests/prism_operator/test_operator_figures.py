"""What two looks at a predictor's metrics say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism_operator.figures import BOUNDS, Figures, read_figures, total, two_digits

EXPOSITION = """# HELP prism_ttft_seconds x
# TYPE prism_ttft_seconds histogram
prism_ttft_seconds_bucket{lane="hot",le="0.1",model_name="m"} 90
prism_ttft_seconds_bucket{lane="hot",le="0.125",model_name="m"} 100
prism_ttft_seconds_bucket{lane="hot",le="+Inf",model_name="m"} 100
prism_ttft_seconds_bucket{lane="cold",le="+Inf",model_name="m"} 3
prism_requests_total{outcome="finished",model_name="m"} 97
prism_requests_total{outcome="failed",model_name="m"} 3
prism_requests_total{outcome="cancelled",model_name="m"} 50
prism_prompt_tokens_total{kind="document",cached="true",model_name="m"} 30
prism_prompt_tokens_total{kind="plain",cached="false",model_name="m"} 70
vllm:num_requests_running{model_name="m"} 4
"""


def histogram(values: list[float]) -> Figures:
    return Figures(tuple(float(sum(value <= bound for value in values)) for bound in BOUNDS))


def test_all_lanes_and_kinds_are_summed() -> None:
    figures = read_figures(EXPOSITION)
    assert (figures.samples, figures.hit_rate, figures.requests) == (103, 0.3, 100)


def test_requests_that_clients_gave_up_say_nothing_of_the_server() -> None:
    assert read_figures(EXPOSITION).error_rate == 0.03


def test_an_unknown_bucket_is_no_silent_zero() -> None:
    with pytest.raises(ValueError, match="upgrade both"):
        read_figures('prism_ttft_seconds_bucket{lane="hot",le="0.123",model_name="m"} 1\n')


def test_a_counter_that_fell_hides_the_span() -> None:
    assert Figures(finished=3.0).since(Figures(finished=5.0)) is None


def test_no_request_has_no_quantile() -> None:
    assert Figures().quantile(0.99) is None


def test_beyond_the_last_bound_the_quantile_is_that_bound() -> None:
    assert histogram([500.0] * 10).quantile(0.99) == BOUNDS[-2]


@given(st.lists(st.floats(0.0001, 100.0), min_size=1, max_size=200))
def test_the_quantile_lies_in_the_bucket_of_the_true_one(values: list[float]) -> None:
    true = sorted(values)[math.ceil(0.99 * len(values)) - 1]
    place = next(place for place, bound in enumerate(BOUNDS) if true <= bound)
    below = BOUNDS[place - 1] if place else 0.0
    found = histogram(values).quantile(0.99)
    assert found is not None
    assert below <= found <= BOUNDS[place]


@given(st.lists(st.lists(st.floats(0.001, 100.0), max_size=20), max_size=5))
def test_pods_together_are_all_their_requests(pods: list[list[float]]) -> None:
    together = [value for pod in pods for value in pod]
    assert total(histogram(pod) for pod in pods).ttft == histogram(together).ttft


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.4567, 0.46), (12.34, 12.0), (1234.0, 1200.0), (0.999, 1.0), (0.0, 0.0), (None, None)]
)
def test_two_digits_are_kept(value: float | None, rounded: float | None) -> None:
    assert two_digits(value) == rounded
