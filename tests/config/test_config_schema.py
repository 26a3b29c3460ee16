"""What can be set, which values are refused, and which fields a policy leaves idle."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from prism.config.schema import (
    MAX_WEIGHT,
    ContractModel,
    Order,
    PrismSpec,
    Reorder,
    RetentionPolicy,
    Weights,
    part_of,
    unused_fields,
)

WEIGHT = st.floats(0, MAX_WEIGHT, allow_nan=False)


def read(spec: dict[str, Any]) -> PrismSpec:
    return PrismSpec.model_validate(spec, by_alias=True, by_name=False)


def refusal(spec: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        read(spec)
    return str(caught.value)


def parts(model: type[ContractModel]) -> list[type[ContractModel]]:
    held = [part for field in model.model_fields.values() if (part := part_of(field.annotation))]
    return [model, *(inner for part in held for inner in parts(part))]


def numbers(model: type[ContractModel], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, field in model.model_fields.items():
        part, path = part_of(field.annotation), (*prefix, to_camel(name))
        if part is not None and "tuple" not in str(field.annotation):
            found += numbers(part, path)
        elif field.annotation in (int, float) or "float" in str(field.annotation):
            found.append(path)
    return found


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for step in reversed(path):
        value = {step: value}
    return dict(value)


NUMBERS = numbers(PrismSpec)


def test_an_empty_spec_has_the_documented_defaults() -> None:
    spec = read({})
    assert spec.selector is None
    assert spec.rollout is None
    assert (spec.scheduler.order, spec.scheduler.reorder) == (Order.PRISM, Reorder.DECLARED)
    assert spec.scheduler.weights == Weights(active=100, predicted=10, queued=1)
    assert (spec.scheduler.cold_lane.quota, spec.scheduler.cold_lane.max_wait_seconds) == (0.1, 10)
    assert not spec.scheduler.lexicographic
    assert not spec.scheduler.fairness.enabled
    assert spec.retention.policy is RetentionPolicy.DEMAND_AWARE
    assert (spec.limits.max_waiting_requests, spec.limits.max_waiting_prompt_tokens) == (2048, 0)
    assert spec.tracing.sampling_ratio is None


def test_the_advanced_fields_have_their_defaults() -> None:
    scheduler = read({}).scheduler
    assert (scheduler.buckets.signature_length, scheduler.buckets.min_utility) == (2, 2)
    assert scheduler.window.arrivals == 1024
    assert scheduler.longest_prefix_match.fall_back_at == 128


def test_an_empty_rollout_has_its_own_defaults() -> None:
    rollout = read({"rollout": {}}).rollout
    assert rollout is not None
    assert (rollout.canary, rollout.watch_seconds, rollout.min_samples) == (1, 300, 300)
    assert (rollout.max_p99_regression, rollout.max_error_rate_increase) == (1.10, 0.01)


def test_zero_and_false_are_values() -> None:
    spec = read(
        {
            "scheduler": {"weights": {"queued": 0}, "coldLane": {"quota": 0}, "lexicographic": False},
            "limits": {"maxWaitingRequests": 0},
            "tracing": {"samplingRatio": 0},
        }
    )
    assert spec.scheduler.weights.queued == 0
    assert spec.scheduler.cold_lane.quota == 0
    assert spec.limits.max_waiting_requests == 0
    assert spec.tracing.sampling_ratio == 0.0
    assert spec.scheduler.model_dump(by_alias=True, exclude_unset=True)["lexicographic"] is False


@settings(max_examples=60)
@given(WEIGHT, WEIGHT, WEIGHT)
def test_weights_are_taken_exactly_when_strictly_ordered(active: float, predicted: float, queued: float) -> None:
    spec = {"scheduler": {"weights": {"active": active, "predicted": predicted, "queued": queued}}}
    if active > predicted > queued >= 0:
        assert read(spec).scheduler.weights.active == active
    else:
        assert "scheduler.weights" in refusal(spec)


def test_equal_weights_are_refused_with_both_names() -> None:
    message = refusal({"scheduler": {"weights": {"active": 10, "predicted": 10}}})
    assert "raise active (10) or lower predicted (10)" in message


def test_a_weight_that_meets_a_default_is_told_so() -> None:
    assert "predicted (10, the default)" in refusal({"scheduler": {"weights": {"active": 5}}})


@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_numbers_that_are_not_finite_are_refused_everywhere(path: tuple[str, ...], value: float) -> None:
    assert ".".join(path) in refusal(nested(path, value))


@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
@pytest.mark.parametrize("value", ["1", True, -1, [1]], ids=repr)
def test_only_numbers_are_numbers(path: tuple[str, ...], value: object) -> None:
    assert ".".join(path) in refusal(nested(path, value))


def test_null_is_a_word_for_unset_only_where_nothing_is_the_default() -> None:
    assert read({"tracing": {"samplingRatio": None}, "rollout": None}) == read({})
    assert "scheduler.coldLane.quota" in refusal({"scheduler": {"coldLane": {"quota": None}}})


def test_the_number_walk_sees_all_kinds_of_numbers() -> None:
    assert len(NUMBERS) == 16


@pytest.mark.parametrize("value", [0, 1, "true", "yes", None], ids=repr)
def test_only_true_and_false_are_truth_values(value: object) -> None:
    assert "scheduler.lexicographic" in refusal({"scheduler": {"lexicographic": value}})


def test_a_whole_number_stays_one_in_scientific_spelling() -> None:
    limits = read({"limits": {"maxWaitingPromptTokens": 1.048576e06}}).limits
    assert limits.max_waiting_prompt_tokens == 1048576
    assert isinstance(limits.max_waiting_prompt_tokens, int)


def test_a_fraction_is_no_count() -> None:
    assert "limits.maxWaitingRequests" in refusal({"limits": {"maxWaitingRequests": 1.5}})


@pytest.mark.parametrize("canary", [1, 3, 2.0, "1%", "10%", "100%"])
def test_a_canary_is_a_number_of_pods_or_a_percentage(canary: object) -> None:
    rollout = read({"rollout": {"canary": canary}}).rollout
    assert rollout is not None
    assert rollout.canary == canary


@pytest.mark.parametrize("canary", [0, -1, 1.5, True, None, "0%", "101%", "10", "10 %", "%", [1]], ids=repr)
def test_any_other_canary_is_refused_with_one_sentence(canary: object) -> None:
    message = refusal({"rollout": {"canary": canary}})
    assert "1 validation error" in message
    assert "a number of pods from 1, or a percentage" in message


@pytest.mark.parametrize("part", parts(PrismSpec), ids=lambda part: part.__name__)
def test_every_part_refuses_fields_that_it_does_not_know(part: type[ContractModel]) -> None:
    with pytest.raises(ValidationError, match="notAField"):
        part.model_validate({"notAField": 1})


@pytest.mark.parametrize("part", parts(PrismSpec), ids=lambda part: part.__name__)
def test_every_part_and_field_says_what_it_is(part: type[BaseModel]) -> None:
    assert part.__doc__
    assert all(field.description for field in part.model_fields.values())


def test_python_spelling_is_refused_in_documents() -> None:
    assert "cold_lane" in refusal({"scheduler": {"cold_lane": {}}})


def test_a_spec_does_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read({}).scheduler.weights.active = 5


def test_a_selector_is_kept() -> None:
    expression = {"key": "tier", "operator": "In", "values": ["gold"]}
    selector = read({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [expression]}}).selector
    assert selector is not None
    assert selector.model_dump(mode="json", by_alias=True)["matchExpressions"] == [expression]


@pytest.mark.parametrize(
    ("operator", "values", "word"),
    [("In", [], "needs values"), ("NotIn", [], "needs values"), ("Exists", ["a"], "takes no values")],
)
def test_an_expression_has_values_exactly_when_it_compares(operator: str, values: list[str], word: str) -> None:
    expression = {"key": "tier", "operator": operator, "values": values}
    assert word in refusal({"selector": {"matchExpressions": [expression]}})


def test_stock_policies_leave_what_is_prisms_own_idle() -> None:
    spec = read(
        {
            "scheduler": {
                "order": "FCFS",
                "weights": {"active": 50},
                "lexicographic": True,
                "coldLane": {"quota": 0.5},
                "reorder": "Documents",
                "fairness": {"enabled": True},
            },
            "retention": {"policy": "LRU"},
        }
    )
    assert unused_fields(spec) == [
        "scheduler.weights.active",
        "scheduler.lexicographic",
        "scheduler.coldLane.quota",
        "scheduler.reorder",
        "scheduler.fairness.enabled",
    ]


def test_weights_act_in_retention_under_stock_order() -> None:
    spec = read({"scheduler": {"order": "FCFS", "weights": {"active": 50}, "window": {"arrivals": 64}}})
    assert unused_fields(spec) == []


def test_a_refusal_to_do_what_a_policy_does_not_do_is_honoured() -> None:
    spec = read({"scheduler": {"order": "LPM", "reorder": "Never", "fairness": {"enabled": False}}})
    assert unused_fields(spec) == []


@pytest.mark.parametrize(
    ("order", "idle"),
    [
        ("Prism", ["scheduler.buckets.minUtility", "scheduler.longestPrefixMatch.fallBackAt"]),
        ("Paper", ["scheduler.longestPrefixMatch.fallBackAt"]),
        ("LPM", ["scheduler.buckets.minUtility"]),
    ],
)
def test_the_knobs_of_one_order_are_idle_under_the_others(order: str, idle: list[str]) -> None:
    knobs = {"buckets": {"minUtility": 3}, "longestPrefixMatch": {"fallBackAt": 7}}
    assert unused_fields(read({"scheduler": {"order": order, **knobs}})) == idle


def test_a_default_is_never_idle() -> None:
    assert unused_fields(read({"scheduler": {"order": "FCFS"}, "retention": {"policy": "LRU"}})) == []
