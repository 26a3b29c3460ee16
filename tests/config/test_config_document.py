"""The settings file: what is read, what is refused with which sentence, and what is in force for a pod."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import settings as running
from hypothesis import strategies as st

from prism.config.document import (
    LIMIT_BYTES,
    REASONS,
    RIGHT_FORM,
    Document,
    Settings,
    in_force,
    parse_document,
    to_document,
)
from prism.config.schema import Order, PrismSpec
from prism.errors import InvalidDocument

PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=30)
# The processors may be busy: how long an example takes says nothing here.
UNHURRIED = running(max_examples=40)
GENERATION = st.integers(0, 2**63 - 1)


def specs() -> st.SearchStrategy[PrismSpec]:
    weights = st.lists(st.floats(0, 1e6), min_size=3, max_size=3, unique=True).map(sorted)
    scheduler = st.fixed_dictionaries(
        {},
        optional={
            "order": st.sampled_from(["Prism", "Paper", "FCFS", "LPM"]),
            "weights": weights.map(lambda w: {"queued": abs(w[0]), "predicted": w[1], "active": w[2]}),
            "coldLane": st.fixed_dictionaries({}, optional={"quota": st.floats(0, 1)}),
            "lexicographic": st.booleans(),
        },
    )
    labels = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), PRINTABLE, max_size=3)
    rollout = st.fixed_dictionaries({"canary": st.integers(1, 99) | st.just("10%")})
    return st.fixed_dictionaries(
        {},
        optional={
            "scheduler": scheduler,
            "tracing": st.fixed_dictionaries({"samplingRatio": st.none() | st.floats(0, 1)}),
            "selector": st.fixed_dictionaries({"matchLabels": labels}),
            "rollout": rollout,
        },
    ).map(PrismSpec.model_validate)


def settings(role: str = "stable") -> st.SearchStrategy[Settings]:
    sources = PRINTABLE.filter(lambda source: source != "defaults")
    return st.builds(
        Settings, spec=specs(), generation=GENERATION, source=sources, uid=st.just("") | PRINTABLE, role=st.just(role)
    )


def document(**spec: Any) -> bytes:
    return json.dumps({"stable": {"source": "team-a/rag", "uid": "u", "generation": 7, "spec": spec}}).encode()


def refusal(content: bytes | str) -> InvalidDocument:
    with pytest.raises(InvalidDocument) as caught:
        parse_document(content if isinstance(content, bytes) else content.encode())
    assert caught.value.reason in REASONS
    return caught.value


def stable(content: bytes) -> Settings:
    return in_force(parse_document(content), None)


# --- never anything but settings or a refusal -------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = ["stable", "spec", "scheduler", "1e999", ".nan", "~", "=", "é", "\\U", "\\x", '"', "'", "|", ">", "#", "\t"]
SIGNS = [
    ": ",
    ":\n  ",
    "\n",
    "- ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "!!str ",
    "<<: ",
    "%YAML ",
    "---\n",
    "...",
]
YAML_PIECES = st.sampled_from([*WORDS, *SIGNS])


def only_settings_or_refusal(content: bytes) -> None:
    try:
        assert len(in_force(parse_document(content), "pod").digest) == 16
    except InvalidDocument as error:
        said = str(error)
        reason = error.reason
    else:
        return
    assert reason in REASONS
    assert "\n" not in said
    said.encode()


@UNHURRIED
@given(st.binary(max_size=300))
def test_any_bytes_are_settings_or_a_refusal(content: bytes) -> None:
    only_settings_or_refusal(content)


@UNHURRIED
@given(st.lists(YAML_PIECES, max_size=60).map("".join))
@example('a: "\\UFFFFFFFF"')
@example('a: "\\ud800"')
@example("%YAML " + "9" * 5000 + ".1\n---\na")
@example("stable: {source: a, generation: " + "1" * 6000 + ", spec: {}}")
@example("[" * 16_000)
@example("- " * 8_000)
@example("{a: " * 4_000)
@example("? " * 8_000)
def test_any_yaml_is_settings_or_a_refusal(text: str) -> None:
    only_settings_or_refusal(text.encode())


@UNHURRIED
@given(JSON_VALUES, st.sampled_from(["stable", "candidate", "spec", "scheduler"]))
def test_any_data_anywhere_is_settings_or_a_refusal(value: Any, where: str) -> None:
    block = {"source": "a", "generation": 1, "spec": {}}
    data: dict[str, Any] = {"stable": block, "candidate": {**block, "pods": []}}
    if where in data:
        data[where] = value
    else:
        data["stable"] = {**block, "spec": value if where == "spec" else {"scheduler": value}}
    only_settings_or_refusal(json.dumps(data).encode())


# --- round trips ------------------------------------------------------------------------------------------------


@UNHURRIED
@given(settings())
def test_settings_come_back_from_the_document(written: Settings) -> None:
    assert stable(to_document(written).encode()) == written


@UNHURRIED
@given(settings(), settings("candidate"), st.lists(PRINTABLE, min_size=1, max_size=3))
def test_a_candidate_comes_back_for_its_pods_only(base: Settings, tried: Settings, pods: list[str]) -> None:
    read = parse_document(to_document(base, tried, pods).encode())
    assert all(in_force(read, pod) == tried for pod in pods)
    assert in_force(read, "another pod") == base


@UNHURRIED
@given(settings())
def test_other_yaml_readers_read_the_same_document(written: Settings) -> None:
    block = yaml.safe_load(to_document(written))["stable"]
    assert (block["source"], block["uid"], block["generation"]) == (written.source, written.uid, written.generation)


def test_the_defaults_come_back_as_the_defaults() -> None:
    assert stable(to_document(Settings.defaults()).encode()) == Settings.defaults()


def test_what_was_set_is_written_and_nothing_else() -> None:
    spec = PrismSpec.model_validate({"scheduler": {"coldLane": {"quota": 0}}})
    text = to_document(Settings(spec=spec, generation=3, source="ns/name"))
    assert yaml.safe_load(text)["stable"]["spec"] == {"scheduler": {"coldLane": {"quota": 0}}}


def test_a_document_that_would_be_too_large_is_not_written() -> None:
    settings = Settings(spec=PrismSpec(), generation=1, source="a")
    with pytest.raises(InvalidDocument, match="larger than 16384"):
        to_document(settings, settings, ["p" * LIMIT_BYTES])


def test_settings_cross_a_process_boundary() -> None:
    written = stable(document(scheduler={"order": "FCFS"}))
    assert pickle.loads(pickle.dumps(written)) == written


# --- what is in force -------------------------------------------------------------------------------------------


def test_a_stable_block_is_read_whole() -> None:
    read = stable(document(scheduler={"order": "FCFS"}))
    assert (read.source, read.uid, read.generation, read.role) == ("team-a/rag", "u", 7, "stable")
    assert read.spec.scheduler.order is Order.FCFS


def test_a_file_without_a_candidate_serves_every_pod_the_same() -> None:
    read = parse_document(document())
    assert in_force(read, "any") == in_force(read, None)


def test_the_defaults_stand_without_a_document() -> None:
    defaults = Settings.defaults()
    assert (defaults.generation, defaults.source, defaults.role) == (0, "defaults", "defaults")
    assert defaults.spec == PrismSpec()


def test_the_source_defaults_needs_nothing_else() -> None:
    assert stable(b"stable: {source: defaults}") == Settings.defaults()


def test_a_return_to_the_defaults_keeps_its_generation() -> None:
    read = stable(b"stable: {source: defaults, uid: '', generation: 9, spec: {}}")
    assert (read.role, read.generation, read.spec) == ("defaults", 9, PrismSpec())


def test_a_candidate_may_try_the_defaults() -> None:
    content = document()[:-1] + b', "candidate": {"source": "defaults", "pods": ["p"]}}'
    assert in_force(parse_document(content), "p").role == "candidate"


def test_the_digest_ignores_spelling() -> None:
    flow = b"stable: {source: a, generation: 1, spec: {limits: {maxWaitingRequests: 1e3}, retention: {}}}"
    block = b"# note\nstable:\n  spec:\n    retention: {}\n    limits: {maxWaitingRequests: 1000}\n"
    block += b"  generation: 1\n  source: a\n"
    assert stable(flow).digest == stable(block).digest


def test_the_digest_does_not_see_which_pods_try_a_candidate() -> None:
    def tried(pods: bytes) -> Settings:
        candidate = b', "candidate": {"source": "b", "generation": 2, "spec": {}, "pods": ' + pods + b"}}"
        return in_force(parse_document(document()[:-1] + candidate), "p")

    assert tried(b'["p"]') == tried(b'["q", "p"]')


@pytest.mark.parametrize("change", ["team-a/rag|team-b/rag", '"u"|"v"', "7|8", "0.2|0.3"])
def test_the_digest_sees_every_part_that_was_written(change: str) -> None:
    content = document(scheduler={"coldLane": {"quota": 0.2}})
    before, after = (part.encode() for part in change.split("|"))
    assert stable(content).digest != stable(content.replace(before, after)).digest


def test_the_digest_is_the_same_in_every_process() -> None:
    assert Settings.defaults().digest == "2dbc129ba8997d20"


# --- sentences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"  \n# only a comment\n", b"---\n...\n", b"~", b"\xef\xbb\xbf"])
def test_nothing_written_is_refused_as_empty(content: bytes) -> None:
    error = refusal(content)
    assert error.reason == "empty"
    assert RIGHT_FORM in str(error)


@pytest.mark.parametrize("content", ["text", "[]", "- stable: {}", "5", "true"])
def test_a_document_that_is_no_mapping_is_shown_the_form(content: str) -> None:
    error = refusal(content)
    assert error.reason == "wrong_form"
    assert RIGHT_FORM in str(error)


@pytest.mark.parametrize("content", ["scheduler: {order: FCFS}", "retention: {}\nlimits: {}", "spec: {}"])
def test_a_bare_spec_is_shown_the_form(content: str) -> None:
    error = refusal(content)
    assert error.reason == "wrong_form"
    assert "belongs under stable" in str(error)
    assert RIGHT_FORM in str(error)


def test_a_whole_kubernetes_object_is_shown_the_form() -> None:
    error = refusal("apiVersion: serving.prism.dev/v1alpha1\nkind: PrismConfig\nspec: {}")
    assert error.reason == "wrong_form"
    assert RIGHT_FORM in str(error)


def test_the_form_that_is_shown_is_right() -> None:
    assert isinstance(parse_document(RIGHT_FORM.encode()), Document)


def test_a_missing_stable_block_is_named() -> None:
    error = refusal("candidate: {source: a, generation: 1, spec: {}, pods: []}")
    assert error.reason == "missing_field"
    assert str(error) == "stable is missing, add it"


@pytest.mark.parametrize("name", ["generation", "spec"])
def test_a_block_lacks_nothing_but_its_uid(name: str) -> None:
    block = {"source": "a", "generation": 1, "spec": {}}
    del block[name]
    assert str(refusal(json.dumps({"stable": block}))) == f"stable lacks {name}, add it"


def test_the_source_defaults_takes_no_spec() -> None:
    error = refusal("stable: {source: defaults, spec: {scheduler: {order: FCFS}}}")
    assert "stable has the source defaults, which takes no spec" in str(error)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"scheduler": {"weights": {"active": "abc"}}}, "scheduler.weights.active must be a number, not 'abc'"),
        ({"scheduler": {"weights": {"active": float("nan")}}}, "scheduler.weights.active must be a number, not 'NaN'"),
        ({"scheduler": {"weights": {"active": -1}}}, "scheduler.weights.active must be greater than 0, not -1"),
        ({"scheduler": {"coldLane": {"quota": 1.5}}}, "scheduler.coldLane.quota must be at most 1, not 1.5"),
        ({"scheduler": {"coldLane": {"quota": -0.5}}}, "scheduler.coldLane.quota must be at least 0, not -0.5"),
        ({"scheduler": {"fairness": {"enabled": 1}}}, "scheduler.fairness.enabled must be true or false, not 1"),
        ({"scheduler": {"fairness": True}}, "scheduler.fairness must be a mapping of fields, not true"),
        ({"scheduler": {"order": "fcfs"}}, "scheduler.order must be 'Prism', 'Paper', 'FCFS' or 'LPM', not 'fcfs'"),
        ({"scheduler": None}, "scheduler is empty: give it a value or remove the line"),
        ({"limits": {"maxWaitingRequests": []}}, "limits.maxWaitingRequests must be a whole number, not a list"),
        ({"retention": {"policy": {"name": "LRU"}}}, "retention.policy must be 'DemandAware' or 'LRU', not a mapping"),
        ({"selector": {"matchLabels": {"a": 1}}}, "selector.matchLabels.a must be text (put it in quotes), not 1"),
        ({"selector": {"matchLabels": 1}}, "selector.matchLabels must be a mapping of names to text, not 1"),
        ({"selector": {"matchExpressions": {}}}, "selector.matchExpressions must be a list, not a mapping"),
    ],
)
def test_a_bad_value_is_named_with_what_to_do(spec: dict[str, Any], sentence: str) -> None:
    error = refusal(document(**spec))
    assert error.reason == "invalid_value"
    assert str(error) == f"stable.spec.{sentence}"


@pytest.mark.parametrize("word", [".nan", ".inf", "-.inf", "1e999", "9" * 400])
def test_numbers_that_are_not_finite_are_refused(word: str) -> None:
    error = refusal(f"stable: {{source: a, generation: 1, spec: {{scheduler: {{weights: {{active: {word}}}}}}}}}")
    assert "stable.spec.scheduler.weights.active must be a finite number" in str(error)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("weigths", "did you mean weights?"), ("cold_lane", "did you mean coldLane?"), ("zzz", "the fields are order, ")],
)
def test_an_unknown_field_is_told_what_is_known(name: str, advice: str) -> None:
    error = refusal(document(scheduler={name: {}}))
    assert error.reason == "unknown_field"
    assert str(error).startswith(f"stable.spec.scheduler.{name} is not a field here: {advice}")


def test_an_unknown_field_in_a_list_is_told_what_is_known() -> None:
    error = refusal(document(selector={"matchExpressions": [{"key": "a", "operator": "Exists", "value": "b"}]}))
    assert "matchExpressions[0].value is not a field here: did you mean values?" in str(error)


def test_what_else_is_wrong_is_named_behind_the_first() -> None:
    error = refusal(document(scheduler={f"field{number}": 1 for number in range(6)}))
    assert str(error).endswith("stable.spec.scheduler.field3 and 2 more)")


def test_two_wrong_fields_are_both_named() -> None:
    error = refusal(document(limits={"maxWaitingRequests": -1}, tracing={"samplingRatio": 2}))
    assert str(error).endswith("(wrong too: stable.spec.tracing.samplingRatio)")


def test_a_long_value_is_shown_short() -> None:
    assert len(str(refusal(document(scheduler={"order": "x" * 9000})))) < 200


def test_a_strange_key_is_shown_in_ascii() -> None:
    assert "stable.spec.'\\xe9 \\n' is not a field" in str(refusal(document(**{"é \n": 1})))


@pytest.mark.parametrize(
    ("field", "value", "phrase"),
    [
        ("source", "", "must not be empty"),
        ("source", "a b", "must be printable ASCII without spaces"),
        ("uid", "u" * 65, "must have at most 64 characters"),
        ("generation", -1, "must be at least 0"),
        ("generation", 2**63, "must be at most 9223372036854775807"),
    ],
)
def test_the_head_of_a_block_is_checked(field: str, value: object, phrase: str) -> None:
    block = {"source": "a", "generation": 1, "spec": {}, field: value}
    assert f"stable.{field} {phrase}" in str(refusal(json.dumps({"stable": block})))


def test_a_kind_of_error_without_a_phrase_still_has_a_sentence() -> None:
    block = '{"source": "a", "generation": 1, "spec": {}}'
    error = refusal(f'{{"stable": {block}, "candidate": [1]}}')
    assert str(error) == "candidate must be a mapping of fields, not a list"


def test_a_document_at_the_limit_is_read() -> None:
    content = document()
    assert stable(content + b" " * (LIMIT_BYTES - len(content))) == stable(content)


def test_a_document_beyond_the_limit_is_refused() -> None:
    content = document()
    error = refusal(content + b" " * (LIMIT_BYTES + 1 - len(content)))
    assert error.reason == "too_large"
    assert "16384 bytes" in str(error)


def test_bytes_that_are_not_utf8_are_named_by_place() -> None:
    error = refusal(b"stable: \xff")
    assert error.reason == "not_utf8"
    assert "at byte 8" in str(error)


def test_a_byte_order_mark_is_no_content() -> None:
    assert stable(b"\xef\xbb\xbf" + document()) == stable(document())
