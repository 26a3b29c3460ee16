"""With a KV connector: blocks that come back late, and KV that comes from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.engine.enginecore.rig import BLOCK, STEP_SECONDS, Rig, RigFactory, changed, spec_of, tight, tokens_of
from vllm.config import KVTransferConfig, VllmConfig
from vllm.v1.outputs import KVConnectorOutput

from prism.engine.enginecore.scheduler import PrismScheduler

Role = Literal["kv_producer", "kv_consumer"]
ORDERS = pytest.mark.parametrize("order", ["Prism", "Paper", "FCFS"])
SENDS_FOR = 8 * STEP_SECONDS


def connected(folder: Path, role: Role) -> Callable[[VllmConfig], VllmConfig]:
    def with_connector(config: VllmConfig) -> VllmConfig:
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="ExampleConnector",
            kv_role=role,
            kv_connector_extra_config={"shared_storage_path": str(folder)},
        )
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
        return config

    return with_connector


def rig_with(rig: RigFactory, folder: Path, role: Role, order: str) -> Rig:
    limits = tight(20, max_running=8, asynchronous=False)
    return rig(changed(PrismScheduler, vllm_config=connected(folder, role)), limits=limits, spec=spec_of(order))


@ORDERS
def test_blocks_that_are_still_being_sent_come_back_to_the_head(rig: RigFactory, tmp_path: Path, order: str) -> None:
    one = rig_with(rig, tmp_path, "kv_producer", order)
    sent: list[tuple[float, Any]] = []

    def send(request: Any, _: Any) -> tuple[bool, None]:
        sent.append((one.now, request))
        return True, None

    connector: Any = one.scheduler.connector
    connector.request_finished = connector.request_finished_all_groups = send
    for number in range(2):
        one.add(f"before-{number}", tokens_of(number, 4 * BLOCK))
    one.move()
    one.add("large", tokens_of("large", 14 * BLOCK))
    for number in range(400):
        if len(one.scheduler.waiting) < 3:
            one.add(f"small-{number}", tokens_of(f"small-{number}", 4 * BLOCK))
        one.move()
        while sent and one.now - sent[0][0] >= SENDS_FOR - 1e-9:
            one.scheduler._free_blocks(sent.pop(0)[1])
        if "large" in one.admitted:
            break
    assert "large" in one.admitted
    assert one.admitted.index("large") <= 2 + 9


def test_what_left_while_its_kv_was_loaded_is_forgotten(rig: RigFactory, tmp_path: Path) -> None:
    one = rig_with(rig, tmp_path, "kv_consumer", "Prism")
    connector: Any = one.scheduler.connector
    connector.get_num_new_matched_tokens = lambda request, found: (request.num_prompt_tokens - found, True)
    connector.update_state_after_alloc = lambda *_: None
    connector.build_connector_meta = lambda _: None
    for number in range(5):
        one.add(f"r{number}", tokens_of(number, 8 * BLOCK))
        one.run_for(2)
        one.abort(f"r{number}")
        one.run_for(2)
        one.scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving={f"r{number}"}))
        one.run_for(3)
    assert len(one.prism.decisions.tree) == 0
    one.add("again", tokens_of(0, 8 * BLOCK))
    waiting = one.prism.decisions.prompt("again")
    assert waiting is not None
    assert waiting.waiting.cached_at_arrival == 0
