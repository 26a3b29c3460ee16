"""The chart's README: what stands in `README.md.tmpl`, with a table of the values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from prism_chart.values import CHART, Value, read_values


def text() -> str:
    """The file's content."""
    frame = (CHART.parent / "prism_chart" / "README.md.tmpl").read_text(encoding="utf-8")
    return frame.replace("{{ values }}\n", "\n".join(_table(read_values())) + "\n")


def _table(values: tuple[Value, ...]) -> Iterator[str]:
    yield from ("| value | what it does | default |", "| --- | --- | --- |")
    for value in values:
        yield from _rows(value)


def _rows(value: Value) -> Iterator[str]:
    if not value.inner:
        yield f"| `{value.name}` | {_cell(value.about)} | `{_cell(_shown(value.default))}` |"
        return
    if value.about:
        yield f"| **`{value.name}`** | {_cell(value.about)} | |"
    for one in value.inner:
        yield from _rows(one)


def _shown(default: Any) -> str:
    return json.dumps(default, ensure_ascii=False)


def _cell(content: str) -> str:
    return content.replace("|", "\\|")
