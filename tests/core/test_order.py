"""In which order the documents of a request are put."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism.core.demand import DemandLedger, Weights
from prism.core.order import AsWritten, ByUtility, Document, DocumentOrder, TreeWalk, cached_blocks

if TYPE_CHECKING:
    from tests.core.conftest import Cache, Part

LETTERS = st.text("abcde", max_size=5)
ORDERS: list[DocumentOrder] = [
    AsWritten(),
    ByUtility(Weights()),
    ByUtility(Weights(lexicographic=True)),
    TreeWalk(Weights()),
    TreeWalk(Weights(lexicographic=True)),
    TreeWalk(Weights(), expansions=3),
]
modest = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


def documents(letters: str) -> list[Document]:
    return [Document(letter.encode(), letter.encode()) for letter in letters]


def ledger_of(*arrivals: str, active: str = "") -> DemandLedger:
    """Each arrival is a text of documents that came and went; the active ones run."""
    ledger = DemandLedger(window=64)
    for number, letters in enumerate(arrivals):
        ledger.arrive(str(number), [letter.encode() for letter in letters])
        ledger.leave(str(number))
    for letter in active:
        ledger.arrive(f"runs {letter}", [letter.encode()])
        ledger.admit(f"runs {letter}")
    return ledger


def arranged(order: DocumentOrder, letters: str, ledger: DemandLedger) -> str:
    return "".join(letters[index] for index in order.arrange(None, documents(letters), ledger))


def served(cache: Cache, system: Part, document: type[Part], paths: list[str]) -> None:
    """Documents of several lengths: `e` is shorter than a block."""
    for path in paths:
        cache.serve(system, *parts(document, path))


def parts(document: type[Part], letters: str) -> list[Part]:
    sizes = {"a": "a", "b": "bb", "c": "ccc", "d": "dddd", "e": ""}
    return [document(sizes[letter], movable=True) for letter in letters]


# --- what every order keeps -------------------------------------------------------------------------------------


@modest
@given(paths=st.lists(LETTERS, max_size=8), letters=LETTERS, gone=st.integers(0, 12))
def test_every_order_is_a_permutation_and_the_same_when_asked_again(
    make_cache: type[Cache], system: Part, document: type[Part], paths: list[str], letters: str, gone: int
) -> None:
    cache = make_cache()
    served(cache, system, document, paths)
    cache.give_up(min(gone, cache.tree.free_blocks))
    wanted = [part.document() for part in parts(document, letters)]
    for order in ORDERS:
        out = order.arrange(cache.anchor(system), wanted, cache.ledger)
        assert sorted(out) == list(range(len(letters)))
        assert order.arrange(cache.anchor(system), wanted, cache.ledger) == out


def test_as_written_keeps_the_callers_order() -> None:
    assert arranged(AsWritten(), "cab", ledger_of("a", "a")) == "cab"


# --- by utility -------------------------------------------------------------------------------------------------


def test_by_utility_puts_the_most_wanted_first() -> None:
    assert arranged(ByUtility(Weights()), "abc", ledger_of("b", "b", "c")) == "bca"


def test_by_utility_goes_by_old_use_between_equals() -> None:
    ledger = ledger_of("a", *["x"] * 64)
    assert ledger.demand(b"a").predicted == 0
    assert arranged(ByUtility(Weights()), "bac", ledger) == "acb"


@pytest.mark.parametrize("order", [ByUtility, TreeWalk])
def test_counts_outweigh_a_class_unless_lexicographic(order: type[ByUtility] | type[TreeWalk]) -> None:
    ledger = ledger_of(*["a"] * 12, active="b")
    assert arranged(order(Weights()), "ab", ledger) == "ab"
    assert arranged(order(Weights(lexicographic=True)), "ab", ledger) == "ba"


@pytest.mark.parametrize("order", [ByUtility, TreeWalk])
def test_the_weights_decide_between_classes(order: type[ByUtility] | type[TreeWalk]) -> None:
    ledger = ledger_of(*["a"] * 4, active="b")
    assert arranged(order(Weights(active=100, predicted=10)), "ab", ledger) == "ba"
    assert arranged(order(Weights(active=100, predicted=99)), "ab", ledger) == "ab"


# --- the walk ---------------------------------------------------------------------------------------------------


@modest
@given(paths=st.lists(LETTERS, max_size=8), letters=LETTERS, gone=st.integers(0, 12))
def test_the_walk_finds_the_most_cached_blocks_there_are(
    make_cache: type[Cache], system: Part, document: type[Part], paths: list[str], letters: str, gone: int
) -> None:
    cache = make_cache()
    served(cache, system, document, paths)
    cache.give_up(min(gone, cache.tree.free_blocks))
    head, wanted = cache.anchor(system), [part.document() for part in parts(document, letters)]
    best = max(cached_blocks(head, wanted, order) for order in permutations(range(len(wanted))))
    assert cached_blocks(head, wanted, TreeWalk(Weights()).arrange(head, wanted, cache.ledger)) == best


@modest
@given(paths=st.lists(LETTERS, max_size=8), order=LETTERS)
def test_cached_blocks_are_those_that_the_hashes_find(
    make_cache: type[Cache], system: Part, document: type[Part], paths: list[str], order: str
) -> None:
    cache = make_cache()
    served(cache, system, document, paths)
    asked = parts(document, order)
    found = cached_blocks(cache.anchor(system), [part.document() for part in asked], range(len(order)))
    assert found <= cache.hits(system, *asked)
    if cache.anchor(system, *asked):
        assert found == cache.hits(system, *asked)


def test_nothing_is_cached_where_the_tree_knows_no_way() -> None:
    assert cached_blocks(None, documents("ab"), [0, 1]) == 0


def test_the_same_document_twice_is_followed_twice(cache: Cache, system: Part, document: type[Part]) -> None:
    served(cache, system, document, ["aab"])
    wanted = [part.document() for part in parts(document, "aba")]
    order = TreeWalk(Weights()).arrange(cache.anchor(system), wanted, cache.ledger)
    assert order == [0, 2, 1]


def test_a_short_document_does_not_hide_the_longer_path(cache: Cache, system: Part, document: type[Part]) -> None:
    served(cache, system, document, ["ecd"])
    wanted = [part.document() for part in parts(document, "dec")]
    order = TreeWalk(Weights()).arrange(cache.anchor(system), wanted, cache.ledger)
    assert order == [1, 2, 0]


def test_the_walk_keeps_short_documents_in_their_place(cache: Cache, system: Part, document: type[Part]) -> None:
    served(cache, system, document, ["ce"])
    for number in range(3):
        cache.ledger.arrive(str(number), [b"/ccc", b"/bb"])
    wanted = [part.document() for part in parts(document, "bec")]
    order = TreeWalk(Weights()).arrange(cache.anchor(system), wanted, cache.ledger)
    assert order == [2, 1, 0]


def test_a_walk_looks_at_a_bounded_number_of_nodes(cache: Cache, system: Part, document: type[Part]) -> None:
    many = [document(chr(200 + number), movable=True) for number in range(12)]
    for first in many:
        for second in many:
            if first is not second:
                cache.serve(system, first, second)
    wanted = [part.document() for part in many]
    for expansions in (0, 1, 5):
        order = TreeWalk(Weights(), expansions).arrange(cache.anchor(system), wanted, cache.ledger)
        assert sorted(order) == list(range(12))
        assert cached_blocks(cache.anchor(system), wanted, order) >= 2 + min(expansions, 2)


def test_the_rest_follows_by_who_is_wanted_together() -> None:
    # `d` is asked for more than `b`, but never with `a`, which stands first.
    ledger = ledger_of("ab", "ab", "ac", "a", "d", "d", "d", active="a")
    assert arranged(TreeWalk(Weights()), "dcba", ledger) == "abdc"


def test_the_rest_follows_the_path_that_was_walked(cache: Cache, system: Part, document: type[Part]) -> None:
    served(cache, system, document, ["a", "bc", "bc", "bc"])
    for number in range(2):
        cache.ledger.arrive(f"pair{number}", [b"/a", b"/dddd"])
        cache.ledger.leave(f"pair{number}")
    cache.tree.reset()
    cache.held.clear()
    cache.use(system, *parts(document, "a"))
    wanted = [part.document() for part in parts(document, "bad")]
    order = TreeWalk(Weights()).arrange(cache.anchor(system), wanted, cache.ledger)
    assert order == [1, 2, 0], "b is asked for most, d with a"


def test_where_nobody_wants_them_together_the_most_wanted_follows() -> None:
    ledger = ledger_of("a", "a", "a", "b", "b", "c")
    assert arranged(TreeWalk(Weights()), "cba", ledger) == "abc"


def test_where_nobody_wants_any_the_order_is_fixed_all_the_same() -> None:
    assert arranged(TreeWalk(Weights()), "cab", DemandLedger()) == arranged(TreeWalk(Weights()), "bca", DemandLedger())


def test_a_tenants_demand_orders_its_own_documents_only(cache: Cache, document: type[Part]) -> None:
    for number in range(5):
        cache.wait(str(number), document("b", movable=True), tenant="theirs")
    cache.serve(document("a", movable=True), tenant="ours")
    ours = [Document(f"ours/{letter}".encode(), f"ours/{letter}".encode()) for letter in "ba"]
    for order in (ByUtility(Weights()), TreeWalk(Weights())):
        assert order.arrange(None, ours, cache.ledger) == [1, 0]
