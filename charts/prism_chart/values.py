"""The chart's values with the comments above them, which are their documentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

CHART: Final = Path(__file__).parent.parent / "prism"


@dataclass(frozen=True, slots=True)
class Value:
    """One entry of `values.yaml`.

    Attributes:
        path: its keys from the outside in.
        about: the comment above it, on one line.
        default: what stands there.
        inner: the entries below it; empty where a user fills in the whole value.
    """

    path: tuple[str, ...]
    about: str
    default: Any
    inner: tuple[Value, ...]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def leaves(self) -> Iterator[Value]:
        """The entries that a user fills in, in the order of the file."""
        if not self.inner:
            yield self
        for value in self.inner:
            yield from value.leaves()


def read_values(path: Path = CHART / "values.yaml") -> tuple[Value, ...]:
    """The entries of the file. A map belongs to the file where one of its keys has a comment, else to the user."""
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode), "values.yaml holds a map"
    return tuple(_values(root, yaml.safe_load(text), (), text.splitlines()))


def _values(node: yaml.MappingNode, defaults: Any, above: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path, default = (*above, key.value), defaults[key.value]
        inner: tuple[Value, ...] = ()
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            inner = tuple(_values(value, default, path, lines))
        if not any(_documented(one) for one in inner):
            inner = ()
        yield Value(path, _comment_above(lines, key.start_mark.line), default, inner)


def _documented(value: Value) -> bool:
    return bool(value.about) or any(_documented(one) for one in value.inner)


def _comment_above(lines: list[str], line: int) -> str:
    comment: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        comment.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(comment)
