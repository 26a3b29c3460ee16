"""Which cached block goes first: classes, worth inside them, and how worth fades."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism.core.demand import Weights
from prism.core.retention import DemandAware
from prism.core.segments import SegmentKind
from prism.core.tree import DemandAwareRadixTree, EvictionKey, Node

if TYPE_CHECKING:
    from tests.core.conftest import Cache, Part


def all_questions_are_cold(cache: Cache) -> None:
    retention = DemandAware(Weights())
    retention.cold_below = 2.0
    cache.tree.retain_by(retention)


def uses_of(cache: Cache, node: Node) -> float:
    """How often it is expected to be asked for, but for being continued."""
    return DemandAware(Weights()).demand(node, cache.tree, aged=float("inf"))[1]


def uses(cache: Cache, prefix: str) -> float:
    node = cache.tree.node_of(f"|{prefix}".encode())
    assert node is not None
    return uses_of(cache, node)


# --- classes ----------------------------------------------------------------------------------------------------


def test_cold_questions_go_then_what_nobody_waits_for_then_the_rest(
    cache: Cache, system: Part, document: type[Part]
) -> None:
    all_questions_are_cold(cache)
    cache.serve(system, document("aa"), "p")
    cache.serve(system, document("bb"), "q")
    cache.wait("r", system, document("aa"))
    assert cache.give_up_by_class(8) == [
        ("ssaap", "private"),
        ("ssbbq", "private"),
        ("ssbb", "unprotected"),
        ("ssb", "unprotected"),
        ("ssaa", "protected"),
        ("ssa", "protected"),
        ("ss", "protected"),
        ("s", "protected"),
    ]


def test_questions_stay_where_sessions_continue(cache: Cache, system: Part) -> None:
    for turns in range(1, 30):
        cache.serve(system, "h" * turns)
    cache.serve(system, "x")
    assert {eviction_class for _, eviction_class in cache.give_up_by_class(20)} == {"unprotected"}


def test_questions_go_first_where_nobody_continues(cache: Cache, system: Part, document: type[Part]) -> None:
    for number in range(100):
        cache.serve(system, document(chr(200 + number % 3)), chr(300 + number))
    order = cache.everything_in_order()
    assert [prefix[3:] for prefix in order[:100]] == [chr(300 + number) for number in range(100)], "oldest first"
    assert {eviction_class for _, eviction_class in cache.give_up_by_class(100)} == {"private"}


def test_a_question_somebody_waits_for_is_protected_like_all_else(cache: Cache, system: Part) -> None:
    all_questions_are_cold(cache)
    cache.serve(system, "p")
    cache.serve(system, "q")
    cache.wait("retry", system, "p")
    assert cache.give_up_by_class(2) == [("ssq", "private"), ("ssp", "protected")]


# A7
@pytest.mark.parametrize("plain", [True, False])
def test_what_the_next_waiting_request_needs_stays(cache: Cache, document: type[Part], plain: bool) -> None:
    needed, other = ("p", "q") if plain else (document("p"), document("q"))
    cache.serve(needed)
    cache.serve(other)
    cache.wait("next", needed)
    assert cache.give_up(1) == ["q"]
    assert cache.hits("p") == 1


# A7
def test_where_all_is_needed_the_least_recent_goes(cache: Cache) -> None:
    for letter in "pq":
        cache.serve(letter)
        cache.wait(letter, letter)
    assert cache.everything_in_order() == ["p", "q"]
    assert sorted(cache.give_up_by_class(2)) == [("p", "protected"), ("q", "protected")]


def test_protection_holds_at_once_for_however_many_are_wanted(cache: Cache) -> None:
    for number in range(60):
        cache.serve(chr(200 + number))
    for number in range(10, 60):
        cache.wait(str(number), chr(200 + number))
    assert sorted(cache.give_up(10)) == [chr(200 + number) for number in range(10)]


def test_protected_documents_go_by_how_many_wait(cache: Cache, document: type[Part]) -> None:
    for letter, waiting in (("a", 3), ("b", 1), ("c", 2)):
        one = document(letter, movable=True)
        cache.serve(one)
        for number in range(waiting):
            cache.wait(f"{letter}{number}", one)
    assert cache.give_up(3) == ["b", "c", "a"]


# --- decay ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [0, 20, 39])
def test_protection_ends_with_the_wait(cache: Cache, one: int) -> None:
    for number in range(40):
        cache.serve(chr(200 + number))
        cache.wait(str(number), chr(200 + number))
    cache.leave(str(one))
    assert cache.give_up_by_class(1) == [(chr(200 + one), "unprotected")]


def test_protection_ends_with_the_admission(cache: Cache) -> None:
    for letter in "pq":
        cache.serve(letter)
    cache.wait("r", "p")
    cache.admit("r")
    assert cache.give_up_by_class(1) == [("p", "unprotected")]


def test_faded_demand_for_movable_documents_is_noticed_after_a_turn_of_the_hand(
    cache: Cache, document: type[Part]
) -> None:
    documents = [document(chr(200 + number), movable=True) for number in range(8)]
    for one in documents:
        cache.serve(one)
        cache.wait(one.text, one)
    for one in documents[:4]:
        cache.leave(one.text)
    gone = []
    for _ in range(9 * cache.tree._HAND):
        cache.serve("z")
        gone += cache.give_up(1)
    assert set(gone) == {"z", *(one.text for one in documents[:4])}


class UsesOnly(DemandAware):
    """Worth by recent admissions, whoever may be continued."""

    def _continued(self, node: Node, tree: DemandAwareRadixTree) -> float:
        return 0.0


def test_old_use_counts_no_longer_once_the_window_has_passed(make_cache: type[Cache]) -> None:
    cache = make_cache(window=30)
    cache.tree.retain_by(UsesOnly(Weights()))
    for _ in range(3):
        cache.serve("o")
    for number in range(27):
        cache.serve(chr(200 + number))
    assert cache.give_up(1) == [chr(200)]
    for letter in "lmn":
        cache.serve(letter)
    assert cache.give_up(1) == ["o"]


# --- worth ------------------------------------------------------------------------------------------------------


def test_single_plain_prompts_go_in_the_order_they_came(cache: Cache) -> None:
    for number in range(100):
        cache.serve(chr(200 + number))
    assert cache.everything_in_order() == [chr(200 + number) for number in range(100)]


def test_plain_prompts_keep_their_place_beside_segments(cache: Cache, system: Part, document: type[Part]) -> None:
    for number in range(100):
        cache.serve(system, document("aaa"), chr(300 + number))
        cache.serve(chr(200 + number))
    order = cache.everything_in_order()
    plain = [order.index(chr(200 + number)) for number in range(100)]
    questions = [order.index(f"ssaaa{chr(300 + number)}") for number in range(100)]
    assert max(questions) < min(plain)


def test_prompts_that_share_a_prefix_keep_it_over_those_that_share_nothing(cache: Cache) -> None:
    for number in range(20):
        cache.serve("shared" + chr(200 + number))
    for number in range(20):
        cache.serve(chr(300 + number))
    order = cache.everything_in_order()
    assert order.index("shared") > order.index(chr(319))


def a_session_and_a_document(cache: Cache, system: Part, document: type[Part]) -> tuple[str, str]:
    """The last turn of a session that may go on, and a document that was used three times."""
    for _ in range(3):
        cache.serve(document("d"), "?")
    for turns in range(1, 30):
        cache.serve(system, "h" * turns)
    return "ss" + "h" * 29, "d"


def test_the_newest_turn_of_a_session_outlives_what_is_used_now_and_then(
    cache: Cache, system: Part, document: type[Part]
) -> None:
    turn, used = a_session_and_a_document(cache, system, document)
    order = cache.everything_in_order()
    assert order.index(used) < order.index(turn)


def test_an_old_turn_of_a_session_does_not(cache: Cache, system: Part, document: type[Part]) -> None:
    turn, used = a_session_and_a_document(cache, system, document)
    for number in range(28):
        cache.serve(chr(200 + number))
    order = cache.everything_in_order()
    assert order.index(turn) < order.index(used)


def test_a_path_of_documents_is_worth_what_is_wanted_together(cache: Cache, document: type[Part]) -> None:
    a, b, c = (document(letter, movable=True) for letter in "abc")
    cache.serve(a, b)
    cache.serve(a, c)
    cache.wait("both", a, c)
    cache.wait("other", b)
    assert cache.give_up_by_class(3) == [("ab", "unprotected"), ("ac", "protected"), ("a", "protected")]


def test_documents_are_worth_their_recent_arrivals(cache: Cache, document: type[Part]) -> None:
    often, seldom = document("a", movable=True), document("b", movable=True)
    for _ in range(3):
        cache.serve(often)
    cache.serve(seldom)
    assert cache.give_up(1) == ["b"]


def test_documents_in_any_order_are_worth_what_is_wanted_anywhere(
    cache: Cache, system: Part, document: type[Part]
) -> None:
    often, seldom, *others = (document(letter) for letter in "abcdefgh")
    for other in others:
        cache.serve(system, other, often)
    cache.serve(system, seldom)
    cache.serve(system, often)
    for other in others:
        cache.serve(system, other)
    assert uses(cache, "ssa") > 2 * uses(cache, "ssb"), "each was first once, but one is asked for all the time"


def test_documents_in_one_order_are_worth_what_is_wanted_first(
    cache: Cache, system: Part, document: type[Part]
) -> None:
    first, second = document("aa"), document("bb")
    for _ in range(30):
        cache.serve(system, first, second)
    cache.serve(system, second, first)
    cache.serve(system, second)
    assert uses(cache, "ssaabb") > 5 * uses(cache, "ssbb"), "nearly all of them have it behind another one"


def test_what_came_back_is_not_taken_for_new(cache: Cache, system: Part, document: type[Part]) -> None:
    one = document("aa")
    for _ in range(10):
        cache.serve(system, one)
    before = uses(cache, "ssaa")
    while cache.hits(system, one):
        cache.give_up(1)
    cache.serve(system, one)
    assert uses(cache, "ssaa") > before


def test_a_resumed_request_asks_for_its_documents_once(cache: Cache, system: Part, document: type[Part]) -> None:
    cache.serve(system, document("aa"))
    before = uses(cache, "ssaa")
    for _ in range(5):
        cache.use(system, document("aa"), again=True)
    assert uses(cache, "ssaa") == before


def test_use_in_an_order_counts_no_longer_once_the_window_has_passed(
    make_cache: type[Cache], system: Part, document: type[Part]
) -> None:
    cache = make_cache(window=4)
    cache.serve(system, document("aa"))
    for number in range(4):
        cache.serve(system, document(chr(200 + number)))
    assert uses(cache, "ssaa") == 0
    assert len(cache.tree._led_with) == 4


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompts=st.lists(st.text("abcd", min_size=1, max_size=4), min_size=1, max_size=40))
def test_documents_that_stand_as_written_are_never_worth_more_than_they_are_asked_for(
    make_cache: type[Cache], document: type[Part], prompts: list[str]
) -> None:
    cache = make_cache(window=16)
    for prompt in prompts:
        cache.serve(*(document(letter) for letter in prompt))
    for name in cache.held:
        node = cache.tree.node_of(name)
        assert node is not None
        assert node.anchor is not None
        _, together = cache.tree.wanted_together(node.anchor)
        assert 0 <= uses_of(cache, node) <= max(together, node.recent.bit_count())


# A8
@pytest.mark.parametrize("plain", [True, False])
def test_a_burst_of_single_prompts_leaves_the_shared_prefix(cache: Cache, document: type[Part], plain: bool) -> None:
    shared = "ssss" if plain else document("ssss", SegmentKind.SYSTEM)
    for number in range(50):
        cache.serve(shared, chr(200 + number))
    for number in range(40):
        cache.serve(chr(300 + number) * 4)
        cache.give_up(max(0, cache.tree.free_blocks - 64))
    assert cache.hits("ssss") == 4


# --- weights ----------------------------------------------------------------------------------------------------


def first_of_two(cache: Cache, queued: int, weights: Weights) -> str:
    """`q` has so many waiting requests and no recent one, `p` one of each."""
    cache.serve("q")
    for letter in [chr(200 + number) for number in range(cache.ledger.window)]:
        cache.use(letter)
    cache.serve("p")
    for number in range(queued):
        cache.wait(str(number), "q")
    cache.wait("one", "p")
    for name in "qp":
        node = cache.tree.node_of(f"|{name}".encode())
        assert node is not None
        node.habits = None
    cache.tree.retain_by(DemandAware(weights))
    return cache.give_up(1)[0]


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        (Weights(active=100, predicted=10, queued=1), "q"),
        (Weights(active=100, predicted=10, queued=9), "p"),
        (Weights(active=100, predicted=10, queued=9, lexicographic=True), "q"),
    ],
)
def test_the_weights_decide_among_protected_prefixes(cache: Cache, weights: Weights, first: str) -> None:
    assert first_of_two(cache, 5, weights) == first


# --- tenants ----------------------------------------------------------------------------------------------------


def test_one_tenants_wait_protects_nothing_of_anothers(cache: Cache, document: type[Part]) -> None:
    for tenant in ("ours", "theirs"):
        cache.serve(document("aa", movable=True), document("b"), tenant=tenant)
        cache.serve("plain", tenant=tenant)
    cache.wait("r0", document("aa", movable=True), tenant="theirs")
    cache.wait("r1", "plain", tenant="theirs")
    classes = dict(cache.give_up_by_class(16))
    assert {what for name, what in classes.items() if name.startswith("ours")} == {"unprotected"}
    assert classes["theirs|aa"] == classes["theirs|plain"] == "protected"


def test_one_tenants_use_makes_nothing_of_anothers_worth_more(cache: Cache, document: type[Part]) -> None:
    for tenant in ("ours", "theirs"):
        cache.serve(document("aa"), tenant=tenant)
    ours = cache.tree.node_of(b"ours|aa")
    before = DemandAware(Weights()).demand(ours, cache.tree) if ours else None
    for _ in range(9):
        cache.serve(document("aa"), tenant="theirs")
    assert ours is not None
    after = DemandAware(Weights()).demand(ours, cache.tree)
    assert before is not None
    assert after <= before
    assert cache.ledger.demand(b"ours/aa").predicted == 1


def test_one_tenants_sessions_say_nothing_about_anothers(cache: Cache) -> None:
    for turns in range(1, 40):
        cache.serve("h" * turns, tenant="theirs")
    cache.serve("a", tenant="ours")
    node = cache.tree.node_of(b"ours|a")
    assert node is not None
    assert node.habits is not None
    assert node.habits.continued < 0.3


# --- the whole order --------------------------------------------------------------------------------------------


class Unequal(DemandAware):
    """No two keys are equal, so there is one right order."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (*super().key(node, tree), *node.run[0])

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (*super().bound(node, tree), *node.run[0])


TRAFFIC = st.lists(
    st.tuples(st.sampled_from(["serve", "wait"]), st.text("ab", max_size=3), st.text("xy", max_size=2), st.booleans()),
    max_size=20,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traffic=TRAFFIC, lexicographic=st.booleans())
def test_blocks_go_in_the_order_that_is_foretold(
    make_cache: type[Cache], document: type[Part], traffic: list[tuple[str, str, str, bool]], lexicographic: bool
) -> None:
    cache = make_cache(window=4)
    for number, (verb, texts, tail, movable) in enumerate(traffic):
        parts: list[Part | str] = [*(document(text * 2, movable=movable) for text in texts), tail]
        cache.serve(*parts) if verb == "serve" else cache.wait(str(number), *parts)
    cache.tree.retain_by(Unequal(Weights(lexicographic=lexicographic)))
    foretold = cache.everything_in_order()
    assert cache.everything_in_order() == foretold, "to ask changes nothing"
    assert [cache.give_up(1)[0] for _ in foretold] == foretold
