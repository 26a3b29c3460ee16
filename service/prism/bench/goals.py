"""The figures that PRISM is meant to reach, what was found, and what the paper says, side by side.

The paper's figures (arXiv 2605.08581) are P99 TTFT and hit rate against its strongest baseline and against SGLang, for
Qwen3-4B and Llama-2-13B, and agents with a small cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prism.bench.findings import INFINITE, Findings, Point, mean_p99_interval, over_shared_seeds, p99_against
from prism.bench.studies import KNEE_PER_S

_OURS = "prism"


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table, as text.

    Attributes:
        reached: whether what was found is what is meant to be; None without the samples to say so.
    """

    where: str
    goal: str
    here: str
    reached: bool | None
    seeds: str
    paper: str
    baselines: str = ""


_PAPER_P99 = {"qwen3-4b": "−23.3 %", "llama2-13b": "−37.1 %"}
_PAPER_SGLANG = {"qwen3-4b": "−63.5 %", "llama2-13b": "−80.8 %"}
_PAPER_HIT = {"qwen3-4b": "+5.9", "llama2-13b": "+12.2"}
_PAPER_AGENTS = "−8.5 to −24.9 %, hit ≈ 75 %"


def goals(found: Mapping[str, Sequence[Findings]]) -> Iterator[Goal]:
    """Lines for what was run, in the order of the goals."""
    readers = (
        ("load", _load),
        ("retention", _retention),
        ("agents", _agents),
        ("fixed", _fixed),
        ("no-worse", _no_worse),
        ("cold-lane", _cold_lane),
    )
    for study, read in readers:
        for one in found.get(study, ()):
            yield from (replace(goal, baselines=one.baselines_run) for goal in read(one))


def _load(found: Findings) -> Iterator[Goal]:
    panel, title = found.panel, found.panel.title
    pairs: list[tuple[float, Point, Point, float]] = []
    for load in found.loads:
        ours, theirs = _ours(found, load), found.strongest(load)
        ratio = p99_against(ours, theirs) if ours is not None and theirs is not None else None
        if ours is None or theirs is None or ratio is None:
            continue
        ours, theirs = over_shared_seeds(ours, theirs)
        pairs.append((load, ours, theirs, ratio))
    if not pairs:
        return
    seeds = _seeds([ours for _, ours, _, _ in pairs])
    where = f"{title}: P99 against the strongest, mean over the loads ({len(pairs)})"
    ratio = sum(ratio for *_, ratio in pairs) / len(pairs)
    mean = _change(ratio)
    interval = mean_p99_interval([(ours, theirs) for _, ours, theirs, _ in pairs])
    if interval is not None:
        bounds = f"{_change(interval.low)} to {_change(interval.high)}"
        mean += f" (seed by seed {_change(interval.value)}, {bounds})"
    yield Goal(where, "−30 % or better", mean, ratio <= 0.70, seeds, _PAPER_P99[panel.model])
    knee = KNEE_PER_S.get((panel.scenario, panel.model))
    for load, _, _, ratio in pairs:
        if load == knee:
            yield Goal(f"{title}: the same at {load:g}/s", "−40 %", _change(ratio), ratio <= 0.60, seeds, "–")
    sglang = _mean_against_sglang(found, _OURS)
    if sglang is not None:
        here, bound = _change(sglang), _mean_against_sglang(found, "prism-endless")
        if bound is not None:
            here += f" (a cache that never fills: {_change(bound)})"
        where, reached = f"{title}: P99 against SGLang's order", sglang <= 0.15
        yield Goal(where, "−85 % or better", here, reached, seeds, _PAPER_SGLANG[panel.model])
    points = sum(ours.hit_percent - theirs.hit_percent for _, ours, theirs, _ in pairs) / len(pairs)
    where = f"{title}: hit rate against the strongest"
    yield Goal(where, "+5 points or better", f"{points:+.1f}", points >= 5, seeds, _PAPER_HIT[panel.model])
    yield from _sustained(found, seeds)


def _mean_against_sglang(found: Findings, arm: str) -> float | None:
    """Mean over the loads of an arm's P99 over that of SGLang's order; None where it was not run at each of them."""
    loads = [load for load in found.loads if found.get("sglang", load) is not None]
    pairs = [(found.get(arm, load), found.get("sglang", load)) for load in loads]
    ratios = [p99_against(mine, other) for mine, other in pairs if mine is not None and other is not None]
    known = [ratio for ratio in ratios if ratio is not None]
    return sum(known) / len(known) if known and len(known) == len(loads) else None


def _sustained(found: Findings, seeds: str) -> Iterator[Goal]:
    ours, theirs = found.sustained_per_s(_OURS), found.strongest_sustained()
    if theirs is None:
        return
    where = f"{found.panel.title}: load sustained against the strongest"
    least = found.at_least_per_s(_OURS) if ours is None else ours
    if least is None:
        return
    gain = least / theirs[1] - 1
    here = f"{least:.2f}/s against {theirs[1]:.2f}/s ({theirs[0]}): {gain:+.0%}"
    if ours is None:
        here = f"> {least:g}/s against {theirs[1]:.2f}/s ({theirs[0]}): {gain:+.0%} at least"
    yield Goal(where, "+10 % or better", here, gain >= 0.10, seeds, "–")


def _retention(found: Findings) -> Iterator[Goal]:
    for load in found.loads:
        ours, bound = _ours(found, load), found.get("prism-belady", load)
        if ours is not None and bound is not None:
            ours, bound = over_shared_seeds(ours, bound)
            points = ours.hit_percent - bound.hit_percent
            here = f"{points:+.1f} ({ours.hit_percent:.1f} against {bound.hit_percent:.1f})"
            where = f"{found.panel.title}: hit rate against Belady, same order"
            yield Goal(where, "within 1 point", here, points >= -1, _seeds([ours]), "–")


def _agents(found: Findings) -> Iterator[Goal]:
    for load in found.loads:
        ours, theirs = _ours(found, load), found.strongest(load)
        if ours is None or theirs is None:
            continue
        ours, theirs = over_shared_seeds(ours, theirs)
        points, ratio = ours.hit_percent - theirs.hit_percent, p99_against(ours, theirs)
        here = f"{_change(ratio)} ({theirs.arm}), hit {points:+.1f} points"
        kept = found.get("stock-kept", load)
        bound = p99_against(kept, theirs) if kept is not None else None
        if bound is not None:
            here += f" (stock with nothing cached ever given up: {_change(bound)})"
        tight = found.panel.scenario == "agents-tight"
        goal = "−40 % or better at hit ≥ −0.5" if tight else "equal to stock within 2 %"
        reached = None if ratio is None else ratio <= 0.60 and points >= -0.5 if tight else ratio <= 1.02
        where = f"{found.panel.title}, {load:g} sessions/s: P99 against the strongest"
        yield Goal(where, goal, here, reached, _seeds([ours]), _PAPER_AGENTS if tight else "–")


def _fixed(found: Findings) -> Iterator[Goal]:
    for load in found.loads:
        ours, stock, bound = _ours(found, load), found.get("stock", load), found.get("fcfs-belady", load)
        if ours is None or stock is None:
            continue
        points, ratio = _over_stock(ours, stock)
        here = _hit_and_p99(points, ratio)
        if bound is not None:
            here += f" (Belady's: {_hit_and_p99(*_over_stock(bound, stock))})"
        reached = None if ratio is None else points >= 1 and ratio <= 0.95
        where, seeds = f"{found.panel.title}, {load:g}/s", _seeds(over_shared_seeds(ours, stock))
        yield Goal(where, "hit +1 point, P99 × 0.95 of stock's", here, reached, seeds, "–")


def _over_stock(point: Point, stock: Point) -> tuple[float, float | None]:
    """Points of hit rate beyond stock vLLM's, and the ratio of the P99."""
    point, stock = over_shared_seeds(point, stock)
    return point.hit_percent - stock.hit_percent, p99_against(point, stock)


def _hit_and_p99(points: float, ratio: float | None) -> str:
    return f"hit {points:+.1f}, P99 {'–' if ratio is None else f'× {ratio:.2f}'}"


def _no_worse(found: Findings) -> Iterator[Goal]:
    for load in found.loads:
        ours = _ours(found, load)
        others = [point for arm in ("stock", "sglang") if (point := found.get(arm, load)) is not None]
        if ours is None or not others:
            continue
        ours, *others = over_shared_seeds(ours, *others)
        known = [level for level in ("P50", "P99", "P99.9") if level in ours.ttft_s()]
        ratios = {level: _least(ours, others, level) for level in known}
        here = ", ".join(f"{level} × {ratio:.2f}" for level, ratio in ratios.items())
        reached = max(ratios.values(), default=INFINITE) <= 1.02
        where = f"{found.panel.title}, {load:g}/s: against the better of stock and SGLang's order"
        yield Goal(where, "≤ 1.02", here, reached, _seeds([ours]), "–")


def _least(ours: Point, others: Sequence[Point], level: str) -> float:
    best = min(point.ttft_s().get(level, INFINITE) for point in others)
    mine = ours.ttft_s()[level]
    return mine / best if best < INFINITE else (INFINITE if mine == INFINITE else 0.0)


def _cold_lane(found: Findings) -> Iterator[Goal]:
    for load in found.loads:
        stock = found.get("stock", load)
        ours = _ours(found, load)
        mine, theirs = (point.rare_p99_s() if point else None for point in (ours, stock))
        if ours is not None and mine is not None and theirs is not None:
            where = f"{found.panel.title}, {load:g}/s: P99 of rare prefixes against stock"
            ratio = mine / theirs
            yield Goal(where, "≤ 1.1", f"× {ratio:.2f}", ratio <= 1.1, _seeds([ours]), "worse at quota 0")


def _ours(found: Findings, load: float) -> Point | None:
    return found.get(_OURS, load)


def _change(value: float | None) -> str:
    if value is None:
        return "too few requests for it"
    return "∞" if value == INFINITE else f"{(value - 1) * 100:+.0f} %".replace("-", "−")


def _seeds(points: Sequence[Point]) -> str:
    return str(min(len(point.outcomes) for point in points))
