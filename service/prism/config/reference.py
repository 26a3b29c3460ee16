"""The configuration page, printed from the schema that is in force, so that it cannot say anything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.config.document import LIMIT_BYTES, REASONS, Settings, to_document
from prism.config.schema import PrismSpec

_MEANINGS = {
    "too_large": f"The document is larger than {LIMIT_BYTES} bytes.",
    "not_utf8": "The document is not UTF-8.",
    "not_yaml": "The document is not YAML, or uses what is not read here: repeated keys, anchors, tags.",
    "empty": "The document holds nothing.",
    "wrong_form": "The document is not a mapping, or holds a bare spec or a whole PrismConfig.",
    "unknown_field": "A field is not one of this version, often a spelling.",
    "missing_field": "A field that must be there is not.",
    "invalid_value": "A value is of the wrong type, out of its bounds, or contradicts another.",
    "unreadable": "The path is a directory, a pipe, or closed to this process.",
    "missing": "The document was there and is gone.",
}

_HEAD = """# Configuration

<!-- Generated from the schema; change the schema and generate it again. -->

These are the fields of a PrismConfig's `spec`, and of `spec` in a settings file. All of them may be left out. Fields
that are not listed are refused; `0` and `false` are values; numbers and truth values are never read from text.

| Field | Type | Default | Meaning |
|---|---|---|---|
"""

_FORM = """
## The settings file

`--prism-config PATH` names a file of this form. It is read again while the server runs; a change is in force as a
whole, without a restart, and a bad one leaves the last good settings in force.

```yaml
{example}```

`candidate` has the same fields and `pods`, the names of the pods that run it; all others run `stable`. The source
`defaults`, with no spec, goes back to the defaults. The file is YAML of at most {limit} bytes; `yes`, `on` and
`010` are text in it.

## Why a document is refused

| Reason | Meaning |
|---|---|
"""


_BOUNDS = {"exclusiveMinimum": "above {}", "minimum": "at least {}", "maximum": "at most {}"}

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Row:
    path: str
    type: str
    default: str
    meaning: str

    def markdown(self) -> str:
        cells = (f"`{self.path}`", self.type, self.default, self.meaning)
        return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |\n"


def reference_markdown() -> str:
    """The configuration reference: every field with its path, type, default and meaning."""
    schema = PrismSpec.model_json_schema(by_alias=True)
    fields = "".join(row.markdown() for row in _rows(schema, schema["$defs"]))
    reasons = "".join(f"| `{reason}` | {_MEANINGS[reason]} |\n" for reason in REASONS)
    return _HEAD + fields + _FORM.format(example=_example(), limit=LIMIT_BYTES) + reasons


def _example() -> str:
    spec = PrismSpec.model_validate({"scheduler": {"coldLane": {"quota": 0.2}}, "tracing": {"samplingRatio": 0.1}})
    return to_document(Settings(spec=spec, generation=1, source="my-settings"))


def _rows(mapping: Schema, definitions: Schema, prefix: str = "") -> Iterator[_Row]:
    required = mapping.get("required", ())
    for name, field in mapping["properties"].items():
        path, held = prefix + name, _held(field, definitions)
        default = "required" if name in required else _default(field, held)
        yield _Row(path, _type(held), default, field.get("description") or held["description"])
        if "properties" in held:
            yield from _rows(held, definitions, f"{path}.")
        elif "$ref" in held.get("items", ()):
            yield from _rows(_held(held["items"], definitions), definitions, f"{path}[].")


def _held(field: Schema, definitions: Schema) -> Schema:
    """The schema behind a reference, or behind `or null`, which a default of null says already."""
    choices = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    target: Schema = choices[0] if len(choices) == 1 else field
    if "$ref" in target:
        target = definitions[target["$ref"].rsplit("/", 1)[-1]]
    return target


def _type(held: Schema) -> str:
    if "enum" in held:
        return ", ".join(f"`{value}`" for value in held["enum"])
    if "anyOf" in held:
        return " or ".join(choice["type"] for choice in held["anyOf"])
    kind = {"object": "mapping", "array": "list"}.get(held["type"], held["type"])
    bounds = [phrase.format(held[bound]) for bound, phrase in _BOUNDS.items() if bound in held]
    return ", ".join([str(kind), *bounds])


def _default(field: Schema, held: Schema) -> str:
    """A mapping has none of its own, only its fields do."""
    if field.get("default", ...) is None:
        return "unset"
    return "" if held.get("type") == "object" else f"`{json.dumps(field['default'])}`"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference_markdown(), encoding="utf-8")
