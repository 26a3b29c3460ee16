"""Which PrismConfig is for which InferenceService."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.config.schema import Selector
from prism_operator.names import LABEL_RUNTIME
from prism_operator.objects import Config, Meta, Runtime, Service, read_service
from prism_operator.select import judge, matches, runs_prism, select

RUNTIMES = {
    ("", "prism-gpu"): Runtime(Meta("", "prism-gpu", "1", labels={LABEL_RUNTIME: "true"})),
    ("", "sklearn"): Runtime(Meta("", "sklearn", "2")),
}
RAG = {"selector": {"matchLabels": {"app": "rag"}}}
Make = Callable[..., Any]


def test_the_older_of_two_has_the_service_and_the_younger_is_told(make_config: Make, make_service: Make) -> None:
    young = judge(make_config("a-young", RAG, created="2026-02-02T00:00:00Z"))
    old = judge(make_config("z-old", RAG, created="2026-01-01T00:00:00Z"))
    selection = select([young, old], [make_service("s", {"app": "rag"})], RUNTIMES)
    assert selection.services == {"s": ("team-a", "z-old")}
    assert selection.conflicts == {("team-a", "a-young"): (("s", "z-old"),)}


def test_of_two_as_old_the_first_by_name_has_it(make_config: Make, make_service: Make) -> None:
    both = [judge(make_config(name, RAG)) for name in ("b", "a")]
    assert select(both, [make_service("s", {"app": "rag"})], RUNTIMES).services == {"s": ("team-a", "a")}


def test_a_service_that_no_config_selects_is_the_defaults(make_config: Make, make_service: Make) -> None:
    selection = select([judge(make_config("rag", RAG))], [make_service("s")], RUNTIMES)
    assert selection.targets(None) == ("s",)
    assert selection.targets(("team-a", "rag")) == ()


def test_a_selected_service_without_prism_is_not_touched_and_named(make_config: Make, make_service: Make) -> None:
    selection = select(
        [judge(make_config("rag", RAG))], [make_service("s", {"app": "rag"}, runtime="sklearn")], RUNTIMES
    )
    assert selection.services == {}
    assert selection.strangers == {("team-a", "rag"): ("s",)}


def test_a_config_that_cannot_be_read_keeps_the_services_that_have_its_settings(
    make_config: Make, make_service: Make
) -> None:
    broken = judge(make_config("rag", {"selector": {"matchLabels": "x"}}))
    held = type(broken)(broken.config, None, broken.complaint, None, frozenset({"s"}))
    assert select([held], [make_service("s"), make_service("t")], RUNTIMES).targets(("team-a", "rag")) == ("s",)


def test_a_wrong_field_is_named_with_its_path(make_config: Make) -> None:
    judged = judge(make_config("rag", {"scheduler": {"coldLane": {"quota": 7}}}))
    assert judged.spec is None
    assert judged.complaint == "spec.scheduler.coldLane.quota must be at most 1, not 7"


def test_the_selector_is_known_though_another_field_is_wrong(make_config: Make) -> None:
    judged = judge(make_config("rag", {**RAG, "scheduler": {"order": "Fastest"}}))
    assert judged.spec is None
    assert judged.selector == Selector(match_labels={"app": "rag"})


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({"spec": {"predictor": {"model": {"runtime": "prism-gpu"}}}}, True),
        ({"spec": {"predictor": {"model": {"runtime": "sklearn"}}}}, False),
        ({"spec": {"predictor": {"model": {"runtime": "gone"}}}}, False),
        ({"spec": {"predictor": {"model": {}}}}, False),
        ({"spec": {"predictor": {"model": {}}}, "status": {"clusterServingRuntimeName": "prism-gpu"}}, True),
        ({"metadata": {"labels": {LABEL_RUNTIME: "true"}}, "spec": {"predictor": {"containers": []}}}, True),
    ],
    ids=["named", "another", "gone", "not chosen yet", "chosen by KServe", "own container"],
)
def test_a_service_runs_prism_by_its_runtimes_label_or_its_own(service: dict[str, Any], expected: bool) -> None:
    service["metadata"] = {"namespace": "team-a", "name": "s", **service.get("metadata", {})}
    assert runs_prism(read_service(service), RUNTIMES) is expected


def test_a_runtime_of_the_namespace_hides_the_clusters(make_service: Make) -> None:
    hidden = {**RUNTIMES, ("team-a", "prism-gpu"): Runtime(Meta("team-a", "prism-gpu", "3"))}
    assert not runs_prism(make_service("s"), hidden)


def test_a_runtime_that_has_gone_takes_no_settings_away(make_service: Make) -> None:
    service = make_service("s", runtime="just-uninstalled")
    assert select([], [service], RUNTIMES, documented={"s"}).targets(None) == ("s",)
    assert select([], [service], RUNTIMES).services == {}


def test_no_selector_matches_nothing_and_an_empty_one_everything() -> None:
    assert not matches(None, {"app": "rag"})
    assert matches(Selector(), {})


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"))


@given(LABELS, st.sampled_from("abc"), st.lists(st.sampled_from("xyz"), min_size=1))
def test_not_in_is_the_opposite_of_in(labels: dict[str, str], key: str, values: list[str]) -> None:
    both = [
        matches(
            Selector.model_validate({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}),
            labels,
        )
        for operator in ("In", "NotIn")
    ]
    assert sorted(both) == [False, True]


@given(st.lists(LABELS, max_size=6), st.lists(LABELS, max_size=4))
def test_every_service_has_one_owner_and_every_loser_is_told(
    services: list[dict[str, str]], selectors: list[dict[str, str]]
) -> None:
    configs = [_config(f"c{number}", labels) for number, labels in enumerate(selectors)]
    found = [_service(f"s{number}", labels) for number, labels in enumerate(services)]
    selection = select([judge(config) for config in configs], found, RUNTIMES)
    assert set(selection.services) == {service.meta.name for service in found}
    for config in configs:
        wanted = {one.meta.name for one in found if matches(judge(config).selector, one.meta.labels)}
        won = set(selection.targets(config.meta.key))
        lost = {name for name, _ in selection.conflicts.get(config.meta.key, ())}
        assert won | lost == wanted
        assert not won & lost


def _config(name: str, labels: dict[str, str]) -> Config:
    return Config(Meta("team-a", name, name, created="2026"), {"selector": {"matchLabels": labels}}, {})


def _service(name: str, labels: dict[str, str]) -> Service:
    return Service(Meta("team-a", name, name, labels=labels), "prism-gpu", "", 1)
