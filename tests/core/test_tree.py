"""What the radix tree holds, and which block goes first: the cases one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prism.core.demand import DemandLedger, Weights
from prism.core.retention import DemandAware
from prism.core.segments import SegmentKind
from prism.core.tree import UNPROTECTED, DemandAwareRadixTree, EvictionKey, Node, Retention

if TYPE_CHECKING:
    from tests.core.conftest import Cache, Part


class Oldest(Retention):
    """Least recently used nodes first."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (UNPROTECTED, node.touched)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return self.key(node, tree)


# --- prefixes ---------------------------------------------------------------------------------------------------


def test_an_empty_tree_matches_nothing(cache: Cache) -> None:
    assert cache.hits("abc") == 0
    assert cache.tree.node_of(b"|a") is None
    assert (len(cache.tree), cache.tree.free_blocks, cache.tree.take(0)) == (0, 0, [])


def test_a_prompt_is_known_from_its_admission_on(cache: Cache) -> None:
    cache.use("abc")
    assert [cache.hits(chain) for chain in ("abc", "abcd", "abx", "x")] == [3, 3, 2, 0]


def test_a_prompt_without_a_full_block_leaves_nothing(cache: Cache) -> None:
    root = cache.use()
    assert (root.end, len(cache.tree)) == (0, 0)


def test_prompts_part_where_their_tokens_do(cache: Cache) -> None:
    cache.use("abcd")
    cache.use("abxy")
    nodes = [cache.tree.node_of(block_hash) for block_hash in (b"|ab", b"|abcd", b"|abxy")]
    assert [(node.start, node.end) for node in nodes if node is not None] == [(0, 2), (2, 4), (2, 4)]


def test_looking_a_prefix_up_changes_nothing(cache: Cache) -> None:
    cache.serve("abc")
    cache.serve("xyz")
    before, epoch = cache.everything_in_order(), cache.tree.epoch
    cache.hits("abc")
    cache.anchor()
    assert (cache.everything_in_order(), cache.tree.epoch) == (before, epoch)


def test_the_epoch_grows_when_a_prefix_appears_or_disappears(cache: Cache) -> None:
    epochs = [cache.tree.epoch]
    cache.serve("abc")
    epochs.append(cache.tree.epoch)
    cache.give_up(1)
    epochs.append(cache.tree.epoch)
    cache.tree.drop(cache.held[b"|ab"])
    epochs.append(cache.tree.epoch)
    cache.tree.reset()
    epochs.append(cache.tree.epoch)
    assert epochs == sorted(set(epochs))


# --- tails before heads -----------------------------------------------------------------------------------------


# A4
def test_the_last_block_of_a_chain_goes_first(cache: Cache) -> None:
    cache.serve("abc")
    assert cache.give_up(1) == ["abc"]
    assert cache.hits("abc") == 2


def test_what_stands_below_goes_before_what_it_stands_on(cache: Cache) -> None:
    cache.serve("abcd")
    cache.serve("abxy")
    cache.tree.retain_by(Oldest())
    assert cache.give_up(6) == ["abcd", "abc", "abxy", "abx", "ab", "a"]


def test_a_block_in_use_keeps_nothing_above_it_from_staying(cache: Cache) -> None:
    cache.serve("abcd")
    cache.tree.reclaim(cache.held[b"|ab"])
    cache.tree.reclaim(cache.held[b"|a"])
    assert cache.give_up(2) == ["abcd", "abc"]
    assert cache.tree.free_blocks == 0


def test_what_is_in_use_is_passed_over_on_the_way_up(cache: Cache) -> None:
    for chain in ("a", "ab", "abc"):
        cache.serve(chain)
    for prefix in ("a", "ab"):
        cache.tree.reclaim(cache.held[f"|{prefix}".encode()])
    assert cache.everything_in_order() == ["abc"]
    assert cache.give_up(1) == ["abc"]


def test_a_part_of_a_node_may_go_and_the_rest_stay(cache: Cache) -> None:
    cache.serve("abcdef")
    assert cache.give_up(2) == ["abcdef", "abcde"]
    assert cache.hits("abcdef") == 4
    assert cache.everything_in_order() == ["abcd", "abc", "ab", "a"]


def test_a_second_copy_goes_before_the_prefix_is_forgotten(cache: Cache) -> None:
    cache.serve("ab")
    cache.tree.free(99, b"|ab", 1)
    assert len(cache.tree.take(1)) == 1
    assert cache.hits("ab") == 2
    cache.tree.take(1)
    assert cache.hits("ab") == 1


def test_both_copies_may_go_at_once(cache: Cache) -> None:
    cache.serve("abc")
    cache.tree.free(99, b"|abc", 2)
    assert len(cache.tree.take(3)) == 3
    assert cache.hits("abc") == 1


def test_a_second_copy_of_what_others_go_on_from_may_go(cache: Cache) -> None:
    cache.use("ab")
    cache.use("abc")
    cache.tree.free(99, b"|ab", 1)
    cache.tree.take(1)
    assert cache.hits("abc") == 3


def test_free_blocks_deep_below_are_known_above(cache: Cache) -> None:
    for chain in ("abcd", "abcx", "aby"):
        cache.serve(chain)
    for prefix in ("a", "ab", "abc"):
        cache.tree.reclaim(cache.held[f"|{prefix}".encode()])
    cache.use("az")
    order = [cache.held[f"|{prefix}".encode()] for prefix in ("a", "ab", "abc")]
    for depth, block in reversed(list(enumerate(order))):
        cache.tree.free(block, b"|abc"[: depth + 2], depth)
    assert sorted(cache.give_up(3)) == ["abcd", "abcx", "aby"]
    assert cache.give_up(3) == ["abc", "ab", "a"]


def test_above_each_branch_counts_once_however_much_of_it_is_free(cache: Cache) -> None:
    for chain in ("abx", "aby", "ac"):
        cache.serve(chain)
    blocks = {prefix: cache.held[f"|{prefix}".encode()] for prefix in ("a", "ab", "aby")}
    for prefix in ("a", "ab", "aby"):
        cache.tree.reclaim(blocks[prefix])
    for prefix in ("aby", "ab", "a"):
        cache.tree.free(blocks[prefix], f"|{prefix}".encode(), len(prefix) - 1)
    assert cache.give_up(5)[-1] == "a"


# A12 (the part of the tree: blocks without a hash never reach it, so nothing of it goes before them)
def test_a_partial_block_is_no_part_of_the_tree(cache: Cache) -> None:
    cache.serve("a")
    assert (len(cache.tree), cache.tree.free_blocks) == (1, 1)


def test_a_block_of_an_unknown_chain_stands_alone(cache: Cache) -> None:
    cache.tree.free(7, b"unknown", 3)
    assert cache.tree.in_order() == [7]
    assert cache.tree.node_of(b"unknown") is None
    assert cache.tree.take(1) == [(7, UNPROTECTED)]


def test_a_hash_at_another_depth_is_not_taken_for_the_prefix(cache: Cache) -> None:
    cache.use("ab")
    cache.tree.free(7, b"|ab", 5)
    cache.tree.take(1)
    assert cache.hits("ab") == 2


@pytest.mark.parametrize("verb", ["reclaim", "drop"])
def test_a_block_that_is_not_free_can_not_be_taken_back(cache: Cache, verb: str) -> None:
    with pytest.raises(KeyError):
        getattr(cache.tree, verb)(5)


def test_the_last_block_is_never_refused_whoever_wants_it(cache: Cache) -> None:
    cache.serve("ab")
    cache.wait("r", "ab")
    assert cache.give_up_by_class(2) == [("ab", "protected"), ("a", "protected")]


# --- what requests leave behind ---------------------------------------------------------------------------------


def test_what_a_request_produced_is_known_when_it_ends(cache: Cache) -> None:
    cache.use("ab")
    cache.tree.settle(cache.hashes("abcd"), 4)
    assert cache.hits("abcd") == 4


def test_what_a_request_announced_and_never_computed_is_forgotten(cache: Cache) -> None:
    cache.use("ab")
    cache.use("abcdef")
    cache.tree.settle(cache.hashes("abcdef"), 3)
    assert cache.hits("abcdef") == 3
    cache.tree.settle(cache.hashes("abcdef"), 0)
    assert cache.hits("abcdef") == 0


def test_what_another_prompt_goes_on_from_is_not_forgotten(cache: Cache) -> None:
    cache.use("abc")
    cache.use("abcd")
    cache.tree.settle(cache.hashes("abc"), 1)
    assert cache.hits("abcd") == 4


def test_what_another_prompt_announced_further_on_is_not_forgotten(cache: Cache) -> None:
    cache.use("abcd")
    cache.tree.settle(cache.hashes("abxx"), 0)
    assert cache.hits("abcd") == 4


def test_what_a_free_block_backs_is_not_forgotten(cache: Cache) -> None:
    cache.use("abcd")
    cache.tree.free(7, b"|ab", 1)
    cache.tree.settle(cache.hashes("abcd"), 0)
    assert cache.hits("abcd") == 2


def test_settling_what_is_known_changes_nothing(cache: Cache) -> None:
    cache.use("ab")
    epoch = cache.tree.epoch
    cache.tree.settle(cache.hashes("ab"), 2)
    assert cache.tree.epoch == epoch


def test_an_answer_behind_a_reusable_segment_is_private(cache: Cache, system: Part) -> None:
    cache.serve(system, output="out")
    kinds = [cache.tree.node_of(block_hash) for block_hash in (b"|ss", b"|ssout")]
    assert [node.kind for node in kinds if node is not None] == [SegmentKind.SYSTEM, SegmentKind.PRIVATE]


def test_an_answer_to_a_plain_prompt_is_plain(cache: Cache) -> None:
    cache.serve("ab", output="out")
    node = cache.tree.node_of(b"|about")
    assert node is not None
    assert node.kind is None


def test_an_answer_that_lost_its_prompt_stands_alone(cache: Cache) -> None:
    cache.tree.settle(cache.hashes("abc"), 3)
    node = cache.tree.node_of(b"|abc")
    assert node is not None
    assert node.kind is None


# --- who wants what ---------------------------------------------------------------------------------------------


def wanted(cache: Cache, prefix: str) -> tuple[int, int]:
    node = cache.tree.node_of(f"|{prefix}".encode())
    assert node is not None
    return node.queued.bit_count(), node.recent.bit_count()


def test_a_waiting_request_marks_what_is_there_of_its_prefix(cache: Cache) -> None:
    cache.use("abcd")
    cache.wait("r", "abxy")
    assert [wanted(cache, prefix)[0] for prefix in ("ab", "abcd")] == [1, 0]
    cache.leave("r")
    assert wanted(cache, "ab")[0] == 0


def test_to_be_expected_again_counts_once(cache: Cache) -> None:
    cache.use("abcd")
    cache.tree.expect("r", cache.hashes("abcd"), 0)
    cache.tree.expect("r", cache.hashes("ab"), 3)
    assert [wanted(cache, prefix)[0] for prefix in ("ab", "abcd")] == [1, 0]


def test_a_mark_follows_a_node_that_is_split(cache: Cache) -> None:
    cache.use("abcd")
    cache.wait("r", "abcd")
    cache.use("abxx")
    assert [wanted(cache, prefix)[0] for prefix in ("ab", "abcd", "abxx")] == [1, 1, 0]
    cache.leave("r")
    assert [wanted(cache, prefix)[0] for prefix in ("ab", "abcd")] == [0, 0]


def test_an_admission_counts_as_recent_for_a_window(make_cache: type[Cache]) -> None:
    cache = make_cache(window=3)
    cache.use("ab")
    for other in ("x", "y"):
        cache.use(other)
    assert wanted(cache, "ab")[1] == 1
    cache.use("z")
    assert wanted(cache, "ab")[1] == 0


def test_another_window_forgets_what_was_recent_and_not_what_is_cached(cache: Cache) -> None:
    cache.serve("ab")
    cache.ledger.resize(8)
    cache.tree.resize(8)
    assert (wanted(cache, "ab")[1], cache.hits("ab")) == (0, 2)
    cache.use("ab")
    cache.tree.resize(8)
    assert wanted(cache, "ab")[1] == 1


def test_a_reset_names_the_free_blocks_in_their_order(cache: Cache) -> None:
    cache.serve("ab")
    cache.serve("xy")
    order = cache.tree.in_order()
    assert cache.tree.reset() == order


def test_a_reset_empties_the_tree_and_keeps_who_waits(cache: Cache) -> None:
    cache.serve("ab")
    cache.wait("r", "ab")
    cache.reset()
    assert (len(cache.tree), cache.tree.free_blocks) == (0, 0)
    cache.serve("ab")
    cache.leave("r")
    assert wanted(cache, "ab")[0] == 0


# --- anchors ----------------------------------------------------------------------------------------------------


def test_anchors_lead_from_segment_to_segment(cache: Cache, system: Part, document: type[Part]) -> None:
    a, b = document("aaa"), document("b")
    cache.use(system, a, b, "?")
    anchors = [cache.anchor(), cache.anchor(system), cache.anchor(system, a), cache.anchor(system, a, b)]
    assert [anchor.blocks for anchor in anchors if anchor is not None] == [0, 2, 5, 6]
    assert cache.anchor(system, b) is None
    assert cache.anchor(system, b, a) is None


def test_an_anchor_knows_the_groups_up_to_it(cache: Cache, system: Part, document: type[Part]) -> None:
    cache.use(system, document("aaa"))
    anchor = cache.anchor(system, document("aaa"))
    assert anchor is not None
    assert list(anchor.groups()) == [b"/aaa", b"/ss"]


def test_an_anchor_counts_what_is_left_of_its_segment(cache: Cache, system: Part, document: type[Part]) -> None:
    cache.serve(system, document("aaa"))
    cache.give_up(2)
    anchor = cache.anchor(system, document("aaa"))
    assert anchor is not None
    assert anchor.blocks == 3


def test_an_anchor_goes_with_the_last_block_of_its_segment(cache: Cache, system: Part, document: type[Part]) -> None:
    cache.serve(system, document("aaa"))
    cache.give_up(3)
    assert cache.anchor(system, document("aaa")) is None
    assert cache.anchor(system) is not None
    cache.give_up(2)
    assert cache.anchor() is None


def test_a_segment_shorter_than_a_block_is_found_below_its_neighbour(
    cache: Cache, system: Part, document: type[Part]
) -> None:
    short = document("")
    cache.serve(system, short, document("aaa"))
    anchor = cache.anchor(system, short)
    assert anchor is not None
    assert anchor.blocks == 2
    cache.give_up(5)
    assert cache.anchor() is None


def test_segments_shorter_than_the_first_block_lead_on(cache: Cache, document: type[Part]) -> None:
    short = document("", SegmentKind.SYSTEM)
    cache.serve(short, document("aaa"))
    assert cache.anchor(short, document("aaa")) is not None
    cache.give_up(3)
    assert cache.anchor(short) is None
    assert not cache.tree._heads


def test_prompts_without_a_full_segment_leave_no_anchor(cache: Cache, document: type[Part]) -> None:
    for tenant in range(50):
        cache.use(document(""), "?", tenant=str(tenant))
    assert not cache.tree._heads


def test_the_same_segments_after_other_tokens_are_anchored_anew(cache: Cache, document: type[Part]) -> None:
    a, b = document("aa"), document("bb")
    for _ in range(20):
        cache.use(a, "x", b)
        cache.use(a, "y", b)
    anchor = cache.anchor(a, b)
    assert anchor is not None
    assert anchor.node is cache.tree.node_of(b"|aaybb")
    nodes = {id(node): node for node in cache.tree._index.values()}
    assert all(len(node.anchors) <= 2 for node in nodes.values()), "what is replaced is dropped"


def test_an_anchor_that_lost_its_place_is_followed_no_more(cache: Cache, document: type[Part]) -> None:
    cache.use("x", document("aa"), document("bb"))
    lost = cache.anchor(document("aa"), document("bb"))
    cache.use("y", document("aa"), document("bb"))
    found = cache.anchor(document("aa"), document("bb"))
    assert found is not None
    assert lost is not None
    assert (found.stands(), lost.stands()) == (True, False)


def test_an_anchor_that_lost_its_place_takes_nothing_with_it(cache: Cache, document: type[Part]) -> None:
    cache.serve("x", document("aa"))
    cache.use("y", document("aa"))
    cache.give_up(3)
    assert cache.hits("xaa") == 0
    assert cache.anchor(document("aa")) is not None


def test_below_a_document_that_may_move_all_may(cache: Cache, system: Part, document: type[Part]) -> None:
    a, b = document("aa", movable=True), document("bb")
    cache.use(system, a, b)
    movable = [anchor.movable for anchor in (cache.anchor(system), cache.anchor(system, a, b)) if anchor]
    assert movable == [False, True]


def test_a_document_may_move_as_soon_as_one_caller_lets_it(cache: Cache, document: type[Part]) -> None:
    cache.use(document("aa"))
    cache.use(document("aa", movable=True))
    anchor = cache.anchor(document("aa"))
    assert anchor is not None
    assert anchor.movable


# --- continued or not -------------------------------------------------------------------------------------------


def rate(cache: Cache, prefix: str) -> float:
    node = cache.tree.node_of(f"|{prefix}".encode())
    assert node is not None
    assert node.habits is not None
    return node.habits.continued


def test_sessions_raise_the_rate_of_continuation(cache: Cache, system: Part) -> None:
    for turns in range(1, 60):
        cache.serve(system, "h" * turns)
    assert rate(cache, "ss") > 0.8


def test_one_shot_questions_lower_it(cache: Cache, system: Part) -> None:
    for number in range(100):
        cache.serve(system, chr(200 + number) * 2)
    assert rate(cache, "ss") < 0.05


def test_prompts_without_a_system_prompt_learn_together(cache: Cache, document: type[Part]) -> None:
    for number in range(100):
        cache.serve(document(chr(200 + number)), chr(400 + number) * 2)
    assert rate(cache, chr(200)) < 0.05


@pytest.mark.parametrize(("kind", "continued"), [(SegmentKind.HISTORY, True), (SegmentKind.DOCUMENT, False)])
def test_a_prompt_that_ends_in_history_is_continued_by_a_longer_one(
    cache: Cache, system: Part, document: type[Part], kind: SegmentKind, continued: bool
) -> None:
    turns = [document(chr(97 + number), kind) for number in range(20)]
    for length in range(1, 20):
        cache.serve(system, *turns[:length])
    assert (rate(cache, "ss") > 0.5) is continued


def test_a_resumed_request_does_not_continue_itself(cache: Cache) -> None:
    cache.use("abc")
    before = rate(cache, "abc")
    cache.use("abc", again=True)
    assert rate(cache, "abc") == before


def test_rates_are_kept_for_a_bounded_number_of_heads(cache: Cache) -> None:
    for number in range(4_100):
        cache.use("a", tenant=str(number))
    assert len(cache.tree._habits) == 4_096


# --- bounded work -----------------------------------------------------------------------------------------------


def test_the_heap_stays_small_where_nothing_is_ever_taken(make_cache: type[Cache]) -> None:
    cache = make_cache(window=4)
    for number in range(2_000):
        cache.serve("ab" if number % 2 else "xy")
        cache.wait(str(number), "ab")
        cache.leave(str(number))
    assert len(cache.tree._heap) <= 300


class Counting(Oldest):
    """All nodes look worth more each time, and it is counted how often one looks."""

    def __init__(self) -> None:
        self.looked = 0

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        self.looked += 1
        return (UNPROTECTED, self.looked)


def test_a_choice_looks_at_a_bounded_number_of_nodes(cache: Cache) -> None:
    for number in range(200):
        cache.serve(chr(200 + number))
    counting = Counting()
    cache.tree.retain_by(counting)
    counting.looked = 1_000
    cache.tree.take(1)
    assert counting.looked - 1_000 <= cache.tree._WEIGHED + cache.tree._HAND


class Turning(Oldest):
    """All are worth more from one moment on, in another order; it is kept at whom one looked since."""

    def __init__(self) -> None:
        self.looked: list[int] | None = None

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        worth = node.run[0][-1]
        if self.looked is None:
            return (UNPROTECTED, worth)
        self.looked.append(worth)
        return (UNPROTECTED, self.now(worth))

    @staticmethod
    def now(worth: int) -> int:
        return 1_000 + worth * 5 % 11


def test_among_those_looked_at_the_least_goes(cache: Cache) -> None:
    turning = Turning()
    cache.tree.retain_by(turning)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        cache.serve(letter)
    turning.looked = []
    assert cache.give_up(1) == [chr(min(turning.looked, key=turning.now))]
    assert len(turning.looked) < 26


def test_a_ledger_of_any_window_fits() -> None:
    tree = DemandAwareRadixTree(DemandLedger(1), Oldest())
    for letter in (b"a", b"b", b"c"):
        tree.use("", [letter], [], True, 0)
    assert [tree.node_of(letter).recent for letter in (b"b", b"c")] == [0, 1]  # type: ignore[union-attr]


def test_a_prefix_that_appears_while_a_request_waits_for_it_is_protected(cache: Cache) -> None:
    cache.wait("w", "abc")
    cache.serve("ab")
    cache.serve("xy")
    cache.tree.retain_by(DemandAware(Weights()))
    assert cache.give_up(2) == ["xy", "x"]


def test_a_sessions_turns_count_once(cache: Cache) -> None:
    for turn in range(1, 6):
        cache.serve("s" * turn)
    node = cache.tree.node_of(b"|s")
    assert node is not None
    assert node.recent.bit_count() == 1


def test_one_prompt_asked_again_and_again_counts_each_time(cache: Cache) -> None:
    for _ in range(5):
        cache.serve("s")
    node = cache.tree.node_of(b"|s")
    assert node is not None
    assert node.recent.bit_count() == 5
