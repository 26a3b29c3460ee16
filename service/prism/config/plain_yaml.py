"""YAML without surprises: the data of JSON, in YAML's spelling.

Numbers, truth values and null are read as YAML 1.2's core schema reads them (`yes`, `010` and `12:30` are text,
`1e6` is a number). Refused: repeated keys, keys that are not text, anchors and aliases, tags, several documents in
one, and nesting that no settings need.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.scanner import ScannerError

MAX_DEPTH = 24
_TOO_DEEP = "the nesting is too deep for any setting"

_NULL, _BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
_STR, _SEQ, _MAP = (f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))

_NUMBER = r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
_NOT_FINITE = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
# Tag, pattern of the whole text, first characters. More digits than an integer here may have are read as a float,
# which has a range and costs nothing to parse.
_CORE_SCHEMA = (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?(0|[1-9][0-9]{0,18})", list("-+0123456789")),
    (_FLOAT, f"{_NUMBER}|{_NOT_FINITE}", list("-+.0123456789")),
)


class _Loader(yaml.SafeLoader):
    """Composes only what is plain; what scalars mean is entered below."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        # The scanner runs ahead of the composer, in time that grows with the square of the open brackets.
        if self.flow_level >= MAX_DEPTH:
            raise ScannerError(None, None, _TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._refuse_what_is_not_plain(self.peek_event())  # type: ignore[no-untyped-call]
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refuse_what_is_not_plain(self, event: Any) -> None:
        problem = None
        if getattr(event, "anchor", None) is not None:
            problem = "anchors and aliases are not read here, write the value out"
        elif getattr(event, "tag", None) is not None:
            problem = "tags are not read here, write the plain value"
        elif self._depth >= MAX_DEPTH:
            problem = _TOO_DEEP
        elif not _encodable(getattr(event, "value", "")):
            problem = "half a surrogate pair is not text"
        if problem:
            raise ComposerError(None, None, problem, event.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag != _STR:
                raise ConstructorError(None, None, "a key must be text, put it in quotes", key_node.start_mark)
            if key_node.value in mapping:
                raise ConstructorError(None, None, "a key stands twice, keep one", key_node.start_mark)
            mapping[key_node.value] = self.construct_object(value_node, deep=True)
        return mapping

    def construct_list(self, node: yaml.SequenceNode) -> list[Any]:
        return self.construct_sequence(node, deep=True)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either reading, YAML 1.1's or this module's, would take for more than text."""


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


# Tables of this class's own: none of YAML 1.1's resolvers and constructors is left in them.
_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {}
for _tag, _text, _first in _CORE_SCHEMA:
    for _reader in (_Loader, _Dumper):
        _reader.add_implicit_resolver(_tag, re.compile(rf"(?:{_text})\Z"), _first)

_Loader.add_constructor(_NULL, lambda loader, node: None)
_Loader.add_constructor(_BOOL, lambda loader, node: node.value.lower() == "true")
_Loader.add_constructor(_INT, lambda loader, node: int(node.value))
_Loader.add_constructor(
    _FLOAT, lambda loader, node: float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
)
_Loader.add_constructor(_STR, lambda loader, node: node.value)
_Loader.add_constructor(_SEQ, _Loader.construct_list)
_Loader.add_constructor(_MAP, _Loader.construct_mapping)


def load(text: str) -> Any:
    """The data of one YAML document: None, bool, int, float, str, list, or dict with text keys.

    Raises:
        yaml.YAMLError: not YAML, or YAML that is not plain.
        ValueError, OverflowError: an escape or a version that the parser cannot hold.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def dump(data: Any) -> str:
    """YAML that `load` and any YAML 1.1 reader read back as `data`; fields keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False)
