"""Writes `tests/data/contextpilot.json`: what ContextPilot's own library decides on small random cases.

.venv/bin/python -m pip install --no-deps --require-hashes -r requirements/contextpilot.txt
.venv/bin/python tests/bench/baselines/record_contextpilot.py
"""

from __future__ import annotations

import contextlib
import io
import json
import random
from importlib import import_module
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "data" / "contextpilot.json"

Event = dict[str, Any]


def script(seed: int, requests: int = 60, documents: int = 14) -> list[Event]:
    """Arrivals with their documents, and requests that the engine has given up."""
    rng = random.Random(seed)
    events: list[Event] = []
    alive: list[int] = []
    for number in range(requests):
        count = rng.randint(2, 6)
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            drawn[min(int(rng.expovariate(0.25)), documents - 1)] = None
        events.append({"arrives": number, "documents": rng.sample(list(drawn), count)})
        alive.append(number)
        if len(alive) > 8 and rng.random() < 0.4:
            events.append({"gone": alive.pop(rng.randrange(3))})
    return events


def decided_by_library(events: list[Event]) -> list[list[int]]:
    """The order of the documents of each arrival, in order of arrival."""
    pilot: Any = import_module("contextpilot.server.live_index").ContextPilot(use_gpu=False)
    ids: dict[int, str] = {}
    orders = []
    with contextlib.redirect_stdout(io.StringIO()):
        for event in events:
            if "gone" in event:
                pilot.remove_requests({ids[event["gone"]]})
                continue
            result = pilot.build_incremental([event["documents"]])
            ids[event["arrives"]] = result["request_ids"][0]
            orders.append([int(document) for document in result["reordered_contexts"][0]])
    return orders


def main() -> None:
    cases = [{"events": script(seed), "orders": decided_by_library(script(seed))} for seed in range(6)]
    RECORDED.write_text(json.dumps(cases, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
