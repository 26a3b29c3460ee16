"""Why each segment of an admitted prompt was, or was not, served from the cache.

    tokens     0            32           64           96     104
               | system     | document A | document B | question |
    cached     ==========================^
    verdict    hit          hit          evicted      never_seen

KV is reused on exact prefixes and in whole blocks, so the first block that is missing says why the cache ended there;
what comes after it could not be used whatever the cache held. To tell, two bounded memories are kept beside the tree:
where prefixes were given up, and which segments were admitted before, by themselves and after the same ones.

What lies in the memories is named by block hashes and identities, which carry the tenant: for each tenant, what another
one sent was never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from prism.core.segments import PromptPlan, Segment, segment_identity

LRU, RESET = "lru", "reset"
"""How a prefix was lost, besides the eviction classes: under the retention policy LRU, or with the whole cache."""

PLAIN = "plain"
"""Kind of a prompt without segments, which is judged as one."""

MAX_JUDGED = 64
"""Segments of a prompt that are judged; of more, the last ones, which are those that miss."""

SHORT_IDENTITY_BYTES = 8

K = TypeVar("K")
V = TypeVar("V")

_SENDERS = 2
"""Namespaces remembered for the same tokens: with two, every tenant has another one."""


class Reuse(StrEnum):
    """What became of a segment at its admission."""

    HIT = "hit"
    """All its whole blocks came from the cache."""
    LAST_BLOCK = "last_block"
    """It is cached; the block of a prompt's last token is always computed again."""
    SHORT_BLOCK = "short_block"
    """It lies in the last block, which the prompt does not fill: only full ones are cached."""
    EVICTED = "evicted"
    """It was there, after the same segments, and was given up."""
    DIFFERS = "differs"
    """It begins as something cached does and goes on otherwise."""
    NOT_AT_PREFIX = "not_at_prefix"
    """It was admitted before, but after other tokens; or a segment before it missed."""
    NEVER_SEEN = "never_seen"
    """It was never admitted before, as far as can be remembered."""


class Loss(NamedTuple):
    """How and when a prefix was given up: an eviction class, `lru` or `reset`; seconds on the engine's clock."""

    how: str
    at: float


class SegmentReuse(NamedTuple):
    """The verdict on one segment, in the order in which the prompt was computed.

    Attributes:
        kind: of the segment, or `plain` for a whole prompt without any.
        start, end: its tokens.
        identity: the first bytes of its identity: equal ones are the same segment of the same tenant.
        cached_tokens: of its tokens, how many came from the cache.
        reuse: the verdict.
        loss: of an evicted one; None if that was too long ago to be remembered.
    """

    kind: str
    start: int
    end: int
    identity: bytes
    cached_tokens: int
    reuse: Reuse
    loss: Loss | None = None


class Lately(Generic[K, V]):
    """A bounded memory that is cheap to write: what was met last is in one of two generations.

    When the young one holds half of the capacity it becomes the old one, and the one before it is forgotten whole.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        return found if found is not None else self._old.get(key)

    def put(self, key: K, value: V) -> None:
        self._young[key] = value
        if len(self._young) >= self._half:
            self._young, self._old = {}, self._young

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class GivenUpPrefixes:
    """Where cached prefixes were cut off lately: the first block that went, and how."""

    def __init__(self, capacity: int = 16_384) -> None:
        self._losses: Lately[bytes, Loss] = Lately(capacity)
        self._of_pass: dict[str, Loss] = {}
        self._now = 0.0

    def begin_pass(self, now: float) -> None:
        """What is given up from now on is given up at this time."""
        self._now = now
        self._of_pass.clear()

    def note(self, first: bytes, how: str) -> None:
        """A prefix ends before the block with this hash from now on."""
        loss = self._of_pass.get(how)
        if loss is None:
            loss = self._of_pass[how] = Loss(how, self._now)
        self._losses.put(first, loss)

    def find(self, block_hash: bytes) -> Loss | None:
        return self._losses.get(block_hash)

    def __len__(self) -> int:
        return len(self._losses)


class Known(NamedTuple):
    """Whether a segment was admitted before: anywhere, and after the very same segments."""

    anywhere: bool
    here: bool


class SegmentMemory:
    """The segments admitted lately, by themselves and by what stood before them."""

    def __init__(self, capacity: int = 16_384) -> None:
        self._identities: Lately[bytes, bool] = Lately(capacity)
        self._paths: Lately[int, bool] = Lately(capacity)

    def admit(self, plan: PromptPlan) -> list[Known]:
        """What was known of each segment of a prompt until now; from now on all are."""
        identities, paths, path = self._identities, self._paths, 0
        known = []
        for segment in plan.segments:
            identity = segment.identity
            path = hash((path, identity))
            here = paths.get(path) is not None
            known.append(_KNOWN[here or identities.get(identity) is not None, here])
            identities.put(identity, True)
            paths.put(path, True)
        return known


_KNOWN = {(anywhere, here): Known(anywhere, here) for anywhere in (False, True) for here in (False, True)}


class CachedPrefix(NamedTuple):
    """How far the cache went for one prompt.

    Attributes:
        prompt_tokens: of the whole prompt.
        full_tokens: of its full blocks, all of which are hashed.
        tokens: found cached; whole blocks.
        block_tokens: of one hashed block.
        hashes: of the prompt's full blocks, chained.
        all_cached: whether the block of the last token is in the cache, too, which is computed all the same.
    """

    prompt_tokens: int
    full_tokens: int
    tokens: int
    block_tokens: int
    hashes: Sequence[bytes]
    all_cached: bool


def judge(
    plan: PromptPlan, known: Sequence[Known], prefix: CachedPrefix, given_up: GivenUpPrefixes
) -> tuple[SegmentReuse, ...]:
    """The verdict on each segment of a prompt that is being admitted; one for the whole of a prompt without segments.

    Args:
        plan: the prompt's, in the order in which it is computed.
        known: what `SegmentMemory.admit` said of it.
    """
    if not prefix.hashes:
        # Nothing is cached: the prompt fills no block, or the engine caches no prefixes.
        return ()
    if not plan.segments:
        return (_whole(prefix, given_up),)
    size, cached = prefix.block_tokens, prefix.tokens
    verdicts: list[SegmentReuse] = []
    missed = False
    for segment, what in zip(plan.segments[-MAX_JUDGED:], known[-MAX_JUDGED:], strict=True):
        start, end = segment.start, segment.end
        reuse: Reuse = Reuse.HIT
        loss: Loss | None = None
        if cached >= end:
            found = end - start
        else:
            found = cached - start if cached > start else 0
            if not found or cached < end - end % size:
                reuse, loss = _miss(start, found, what, prefix, given_up, missed)
                missed = True
        identity = segment.identity[:SHORT_IDENTITY_BYTES]
        verdicts.append(SegmentReuse(segment.kind, start, end, identity, found, reuse, loss))
    return tuple(verdicts)


def _whole(prefix: CachedPrefix, given_up: GivenUpPrefixes) -> SegmentReuse:
    """The verdict on a prompt without segments: there is no memory of such, but of what they had in common."""
    found = prefix.tokens
    reuse: Reuse = Reuse.HIT
    loss: Loss | None = None
    if found < prefix.full_tokens:
        reuse, loss = _miss(0, found, _KNOWN[False, False], prefix, given_up, missed=False)
    return SegmentReuse(PLAIN, 0, prefix.prompt_tokens, b"", found, reuse, loss)


def _miss(
    start: int, found: int, known: Known, prefix: CachedPrefix, given_up: GivenUpPrefixes, missed: bool
) -> tuple[Reuse, Loss | None]:
    """Why a segment that begins at token `start` and of which `found` tokens were cached did not hit.

    Args:
        missed: whether one before it missed; otherwise it is where the cached prefix ends.
    """
    if max(prefix.tokens, start) >= prefix.full_tokens:
        return Reuse.SHORT_BLOCK, None
    if not missed and prefix.all_cached:
        return Reuse.LAST_BLOCK, None
    if known.here or not missed:
        loss = given_up.find(prefix.hashes[(start if missed else prefix.tokens) // prefix.block_tokens])
        if known.here or loss is not None:
            return Reuse.EVICTED, loss
    if found:
        return Reuse.DIFFERS, None
    return (Reuse.NOT_AT_PREFIX if known.anywhere else Reuse.NEVER_SEEN), None


class OtherTenants:
    """Which segments more than one tenant has sent.

    It stands apart from all that decides and is told to nobody but those who ask across tenants.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._senders: Lately[bytes, tuple[str, ...]] = Lately(capacity)
        """By tokens: the first namespaces that sent them, two at most."""

    def sent_before(self, plan: PromptPlan, tokens: Sequence[int]) -> frozenset[bytes]:
        """The short identities of those segments of a prompt that others had sent before; now this tenant has, too."""
        out = set()
        for segment in plan.segments:
            content = _content(segment, plan.namespace, tokens)
            senders = self._senders.get(content) or ()
            if senders not in ((), (plan.namespace,)):
                out.add(segment.identity[:SHORT_IDENTITY_BYTES])
            known = plan.namespace in senders or len(senders) == _SENDERS
            self._senders.put(content, senders if known else (*senders, plan.namespace))
        return frozenset(out)


def _content(segment: Segment, namespace: str, tokens: Sequence[int]) -> bytes:
    """Digest of a segment's tokens that is the same for every tenant."""
    return segment_identity(tokens[segment.start : segment.end], "") if namespace else segment.identity
