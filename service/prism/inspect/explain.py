"""`prism explain`: one request of a running predictor."""

from __future__ import annotations

import msgspec
from rich.console import Console

from prism.inspect.admin_port import AdminPort
from prism.telemetry.explain import Explanation


def show_explanation(
    address: str, request: str, *, all_tenants: bool, as_json: bool, console: Console | None = None
) -> None:
    """Explain a request of the predictor whose admin port this is.

    Args:
        request: its `x-request-id` or its trace id.

    Raises:
        UnansweredQuestion: the predictor does not answer, or does not know the request (any more).
    """
    console = Console() if console is None else console
    told = AdminPort(address).ask(Explanation, "explain", request, all_tenants=str(all_tenants).lower())
    if as_json:
        console.out(msgspec.json.encode(told).decode(), highlight=False)
        return
    for line in told.lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
