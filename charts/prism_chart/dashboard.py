"""The Grafana dashboard, built with Grafana's own types from the names in `prism.telemetry.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

from prism.telemetry import metrics as m

FILE: Final = "dashboards/prism.json"
_PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_SECONDS: Final = "s"
_SHARE: Final = "percentunit"
_PER_SECOND: Final = "reqps"

# Where a Prometheus adds no namespace to what it scrapes, `.*` selects its series too.
_CHOSEN: Final = f'{m.MODEL_NAME}=~"$model", namespace=~"$namespace"'

_FAILED: Final = f'{m.OUTCOME}="failed"'
_ENGINE_LOST: Final = f'{m.REASON}=~"engine_dead|engine_hung"'

Query = tuple[str, str]
"""A PromQL expression and how its lines are named."""


def text() -> str:
    """The dashboard as Grafana imports it."""
    return JSONEncoder(sort_keys=True, indent=2).encode(_dashboard().build()) + "\n"


def _dashboard() -> Dashboard:
    board = (
        Dashboard("PRISM")
        .uid("prism-predictors")
        .description("Where the time to the first token goes, and what the queue and the KV cache do about it")
        .tags(["prism", "kserve", "vllm"])
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").type("prometheus").label("Data source"))
        .with_variable(_choice("namespace", "Namespace", f"label_values({m.REQUESTS}, namespace)"))
        .with_variable(_choice("model", "Model", f"label_values({m.REQUESTS}, {m.MODEL_NAME})"))
    )
    numbers = count(1)
    for title, panels in _rows():
        board = board.with_row(Row(title).id(next(numbers)))
        for panel in panels:
            board = board.with_panel(panel.id(next(numbers)))
    return board


def _choice(name: str, label: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(_PROMETHEUS)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _rows() -> list[tuple[str, list[Panel]]]:
    return [
        ("Time to first token", _ttft_panels()),
        ("Queue", _queue_panels()),
        ("KV cache", _cache_panels()),
        ("Settings and health", _health_panels()),
    ]


def _ttft_panels() -> list[Panel]:
    ttft = [(_quantile(q, m.TTFT, m.LANE), _named(q, m.LANE)) for q in (0.5, 0.99)]
    parts = [_part_panel(part) for part in m.PARTS]
    return [
        _panel("TTFT by lane", "From arrival to the first token sent, at the predictor.", _SECONDS, ttft, width=12),
        _panel("Mean TTFT by part", _MEAN_OF_PARTS, _SECONDS, [(_mean_by_part(), _braced(m.PART))], width=12),
        *parts,
    ]


_MEAN_OF_PARTS: Final = "The three parts add up to the time to first token: the one that grows says where to look."
_PART_MEANINGS: Final = {
    "admission_wait": "Rendering, tokenisation and the queue. Grows when more arrives than the engine can take.",
    "prefill": "From the first scheduled token to the last prompt token. Grows with prompt tokens that are not cached.",
    "first_token": "From the end of prefill to the first token sent. Grows with long steps and held back output.",
}


def _part_panel(part: str) -> Panel:
    chosen = f'{m.PART}="{part}"'
    queries = [(_quantile(0.99, m.TTFT_PART, m.LANE, chosen), _named(0.99, m.LANE))]
    return _panel(f"{part.replace('_', ' ').capitalize()} by lane", _PART_MEANINGS[part], _SECONDS, queries, width=8)


def _queue_panels() -> list[Panel]:
    return [
        _panel(
            "Waiting requests by lane",
            "What waits for admission. Autoscaling by KEDA uses this figure.",
            "short",
            [(f"sum by ({m.LANE}) ({_gauge(m.WAITING_REQUESTS)})", _braced(m.LANE))],
        ),
        _panel(
            "Cold-lane waits",
            "The age of the oldest waiting request. The quota bounds overtakings, not seconds.",
            _SECONDS,
            [(f"max by ({m.MODEL_NAME}) ({_gauge(m.OLDEST_WAIT)})", _braced(m.MODEL_NAME))],
        ),
        _panel(
            "Overtakings of the oldest request",
            "Admissions in a row that passed it: at most ceil(1/quota) - 1 with a cold-lane quota.",
            "short",
            [(f"max by ({m.MODEL_NAME}) ({_gauge(m.COLD_LANE_OVERTAKES)})", _braced(m.MODEL_NAME))],
        ),
        _panel(
            "Admission wait of the cold lane",
            "What the requests waited that the quota or maxWaitSeconds admitted.",
            _SECONDS,
            [
                (_quantile(q, m.TTFT_PART, m.MODEL_NAME, f'{m.PART}="admission_wait", {m.LANE}="cold"'), _named(q))
                for q in (0.5, 0.99)
            ],
        ),
        _panel(
            "Requests by how they ended",
            "Refused ones were told to come back, or that they can never succeed.",
            _PER_SECOND,
            [(f"sum by ({m.OUTCOME}) ({_rate(m.REQUESTS)})", _braced(m.OUTCOME))],
        ),
        _panel(
            "Refused requests by reason",
            "queue_full and prompt_tokens_full are the limits of the PrismConfig.",
            _PER_SECOND,
            [(f"sum by ({m.REASON}) ({_rate(m.REFUSED_REQUESTS)}) > 0", _braced(m.REASON))],
        ),
    ]


def _cache_panels() -> list[Panel]:
    cached = _rate(m.PROMPT_TOKENS, f'{m.CACHED}="true"')
    return [
        _panel(
            "Hit rate",
            "Share of prompt tokens that the prefix cache had.",
            _SHARE,
            [
                (
                    f"sum by ({m.MODEL_NAME}) ({cached}) / sum by ({m.MODEL_NAME}) ({_rate(m.PROMPT_TOKENS)})",
                    _braced(m.MODEL_NAME),
                )
            ],
        ),
        _panel(
            "Hit rate by segment kind",
            "Documents hit least where their order differs from request to request.",
            _SHARE,
            [
                (
                    f"sum by ({m.KIND}) ({cached}) / (sum by ({m.KIND}) ({_rate(m.PROMPT_TOKENS)}) > 0)",
                    _braced(m.KIND),
                )
            ],
        ),
        _panel(
            "Evicted blocks by class",
            "Protected blocks go last: many of them mean that what is wanted soon does not fit.",
            "short",
            [(f"sum by ({m.CLASS}) ({_rate(m.EVICTIONS)})", _braced(m.CLASS))],
        ),
    ]


def _health_panels() -> list[Panel]:
    in_force = _gauge(m.SETTINGS_GENERATION)
    return [
        _panel(
            "Settings generation",
            "Two lines for one model: a roll-out, or a pod that has not taken the change.",
            "short",
            [
                (f"max by ({m.MODEL_NAME}) ({in_force})", f"newest {_braced(m.MODEL_NAME)}"),
                (f"min by ({m.MODEL_NAME}) ({in_force})", f"oldest {_braced(m.MODEL_NAME)}"),
            ],
        ),
        _panel(
            "Refused settings",
            "The last good ones stay in force.",
            "short",
            [(f"sum by ({m.REASON}) (increase({m.SETTINGS_REFUSALS}{{{_CHOSEN}}}[$__range])) > 0", _braced(m.REASON))],
        ),
        _panel(
            "Engine health",
            "Requests that failed, and those refused since the engine was dead or hung.",
            _PER_SECOND,
            [
                (f"sum by ({m.MODEL_NAME}) ({_rate(m.REQUESTS, _FAILED)})", f"failed {_braced(m.MODEL_NAME)}"),
                (
                    f"sum by ({m.MODEL_NAME}) ({_rate(m.REFUSED_REQUESTS, _ENGINE_LOST)})",
                    f"engine lost {_braced(m.MODEL_NAME)}",
                ),
            ],
        ),
        _panel(
            "PRISM's time in a scheduler pass",
            "Its budget is 2 ms.",
            _SECONDS,
            [(_quantile(q, m.SCHEDULER_PASS, m.MODEL_NAME), _named(q)) for q in (0.5, 0.99)],
        ),
        _panel(
            "Spans by what became of them",
            "Dropped and failed ones never slow a request down.",
            "short",
            [(f"sum by ({m.RESULT}) ({_rate(m.SPANS)})", _braced(m.RESULT))],
        ),
        _panel(
            "Lost facts",
            "Messages from the engine that were lost: traces of that time may be incomplete.",
            "short",
            [(f"sum by ({m.REASON}) ({_rate(m.LOST_FACTS)}) > 0", _braced(m.REASON))],
        ),
    ]


def _braced(label: str) -> str:
    return f"{{{{{label}}}}}"


def _named(q: float, label: str = m.MODEL_NAME) -> str:
    return f"P{q * 100:.0f} {_braced(label)}"


def _gauge(name: str) -> str:
    return f"{name}{{{_CHOSEN}}}"


def _rate(name: str, also: str = "") -> str:
    return f"rate({name}{{{', '.join(filter(None, (_CHOSEN, also)))}}}[$__rate_interval])"


def _quantile(q: float, name: str, by: str, also: str = "") -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) ({_rate(f'{name}_bucket', also)}))"


def _mean_by_part() -> str:
    total, count = _rate(f"{m.TTFT_PART}_sum"), _rate(f"{m.TTFT_PART}_count")
    return f"sum by ({m.PART}) ({total}) / sum by ({m.PART}) ({count})"


def _panel(title: str, about: str, unit: str, queries: Sequence[Query], *, width: int = 8) -> Panel:
    panel = (
        Panel()
        .title(title)
        .description(about)
        .datasource(_PROMETHEUS)
        .unit(unit)
        .min(0)
        .span(width)
        .height(8)
        .fill_opacity(8)
        .legend(
            VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for index, (expression, name) in enumerate(queries):
        panel = panel.with_target(
            Dataquery().expr(expression).legend_format(name).range().ref_id(chr(ord("A") + index))
        )
    return panel
