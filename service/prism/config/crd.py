"""The CustomResourceDefinition of PrismConfig, made from the schema that is in force.

Kubernetes takes a part of JSON Schema ("structural"): no references, no `const`, exclusive bounds as truth values,
and rules across fields in CEL, each with the sentence that the user reads.

No default of the settings themselves stands in the definition: the API server would write it into every object, a
field that was left out could not be told from one that was set, and a better default in a later version would reach
nobody. The descriptions name them. Only what the operator alone reads is filled in: `spec` itself and `rollout`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from prism.config.schema import (
    ColdLane,
    ContractModel,
    LabelRequirement,
    PrismSpec,
    Rollout,
    Weights,
)
from prism.config.status import PrismConfigStatus

GROUP: Final = "serving.prism.dev"
VERSION: Final = "v1alpha1"
NAME: Final = f"prismconfigs.{GROUP}"

Schema = dict[str, Any]

_KEPT = (
    "type", "format", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "maxProperties", "required", "nullable",
)  # fmt: skip
_DROPPED = ("title", "default", "description", "additionalProperties")
_MADE = ("properties", "items", "$ref", "anyOf", "allOf", "const", "exclusiveMinimum", "exclusiveMaximum")


def _by_default(model: type[ContractModel], field: str) -> str:
    """CEL for the value of a field that may be left out."""
    default = model.model_fields[field].default
    return f"(has(self.{field}) ? self.{field} : {default!r})"


_ACTIVE, _PREDICTED, _QUEUED = (_by_default(Weights, field) for field in ("active", "predicted", "queued"))


def _weights_rule(above: str, below: str, names: tuple[str, str]) -> Schema:
    # The values themselves are not named: the API server does not allow what it would cost to print them.
    defaults = ", ".join(f"{name} {model.default:g}" for name, model in Weights.model_fields.items())
    advice = f"raise {names[0]} or lower {names[1]} (left out they are {defaults})"
    return {
        "rule": f"{above} > {below}",
        "message": f"weights must be strictly ordered, active > predicted > queued: {advice}",
        "reason": "FieldValueInvalid",
    }


_RULES: Final[Mapping[type[ContractModel], tuple[Schema, ...]]] = {
    Weights: (
        _weights_rule(_ACTIVE, _PREDICTED, ("active", "predicted")),
        _weights_rule(_PREDICTED, _QUEUED, ("predicted", "queued")),
    ),
    ColdLane: (
        {
            "rule": "!has(self.quota) || (self.quota >= 0.0 && self.quota <= 1.0)",
            "message": "quota is a share of admissions from 0 to 1: write 0.1 for 10 %",
            "fieldPath": ".quota",
            "reason": "FieldValueInvalid",
        },
    ),
    LabelRequirement: (
        {
            "rule": "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
            "message": "the operators In and NotIn need values: add them, or use Exists or DoesNotExist",
            "reason": "FieldValueInvalid",
        },
        {
            "rule": "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
            "message": "the operators Exists and DoesNotExist take no values: remove them, or use In or NotIn",
            "reason": "FieldValueInvalid",
        },
    ),
    Rollout: (
        {
            "rule": "!has(self.canary) || (type(self.canary) == int ? int(self.canary) >= 1 : "
            "string(self.canary).matches('^(100|[1-9][0-9]?)%$'))",
            "message": 'canary is a number of pods from 1, or a percentage from "1%" to "100%"',
            "fieldPath": ".canary",
            "reason": "FieldValueInvalid",
        },
    ),
}

_MODELS = {model.__name__: model for model in _RULES}
_FILLED_IN = {Rollout.__name__}

_COLUMNS: Final = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', "Whether all is as the spec says", 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', "Why, in a word", 0),
    ("Cold-Quota", "number", ".status.coldQuota", "Share of admissions that the cold lane is sure of", 0),
    ("Applied", "string", ".status.applied", "Pods that obey the settings, of all", 0),
    ("Hit-Rate", "number", ".status.live.hitRate", "Share of prompt tokens found in the cache", 0),
    ("P99-TTFT", "number", ".status.live.p99TtftSeconds", "99th percentile of the time to first token, in seconds", 0),
    ("Message", "string", '.status.conditions[?(@.type=="Ready")].message', "What to do", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Since when it exists", 0),
)


def custom_resource_definition() -> Schema:
    """The definition as `kubectl apply` takes it."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
        "schema": {"openAPIV3Schema": _object_schema()},
    }
    names = {
        "kind": "PrismConfig",
        "listKind": "PrismConfigList",
        "plural": "prismconfigs",
        "singular": "prismconfig",
        "shortNames": ["pcfg"],
        "categories": ["prism", "all"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def helm_template() -> str:
    """The definition as the chart's template: upgraded with the chart, kept when it is uninstalled.

    Raises:
        ValueError: a description holds what Helm would take for its own.
    """
    text = yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=110)
    if "{{" in text:
        raise ValueError("a description holds {{, which Helm would read: write it in words")
    head = "{{- /* Generated from the schema by `make crd`; change the schema and generate it again. */}}\n"
    return f'{head}{{{{- if include "prism.crd.template" . }}}}\n{text}{{{{- end }}}}\n'


def structural_schema(model: type[ContractModel]) -> Schema:
    """The model in the part of JSON Schema that Kubernetes takes.

    Raises:
        ValueError: the model says something that cannot be said there.
    """
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}), filled_in=False)


def _object_schema() -> Schema:
    return {
        "type": "object",
        "description": "Settings of PRISM's scheduler and KV cache for the InferenceServices that it selects.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**structural_schema(PrismSpec), "default": {}},
            "status": structural_schema(PrismConfigStatus),
        },
    }


def _column(name: str, kind: str, path: str, description: str, priority: int) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path, "description": description}
    return {**column, "priority": priority} if priority else column


def _structural(field: Schema, definitions: Schema, *, filled_in: bool) -> Schema:
    held, name, nullable = _held(field, definitions)
    _refuse_the_unknown(held)
    made: Schema = {key: held[key] for key in _KEPT if key in held}
    made |= {key: value for key, value in held.items() if key.startswith("x-kubernetes-")}
    made |= _bounds(held) | _contents(held, definitions, filled_in=name in _FILLED_IN)
    if "const" in held:
        made["enum"] = [held["const"]]
    if nullable:
        made["nullable"] = True
    if name in _MODELS:
        made["x-kubernetes-validations"] = [dict(rule) for rule in _RULES[_MODELS[name]]]
    if filled_in and "default" in field:
        made["default"] = field["default"]
    description = _description(field, held, said=not filled_in)
    return {"description": description, **made} if description else made


def _held(field: Schema, definitions: Schema) -> tuple[Schema, str, bool]:
    """The schema behind references and behind `or null`, the name of its definition, and whether null is allowed."""
    if field.get("x-kubernetes-int-or-string"):
        # Both forms are checked by the rule, and the longest of them is "100%".
        return {**{key: field[key] for key in field if key != "anyOf"}, "maxLength": 4}, "", False
    choices = [choice for choice in field.get("anyOf", ()) if choice.get("type") != "null"]
    nullable = "anyOf" in field and len(choices) < len(field["anyOf"])
    if len(choices) > 1:
        raise ValueError(f"no structural schema says one of several forms: {field}")
    target: Schema = {**field, **choices[0]} if choices else field
    target = {key: value for key, value in target.items() if key != "anyOf"}
    if "$ref" not in target:
        return target, "", nullable
    name = target["$ref"].rsplit("/", 1)[-1]
    extra = {key: value for key, value in target.items() if key.startswith("x-")}
    return {**definitions[name], **extra}, name, nullable


def _refuse_the_unknown(held: Schema) -> None:
    known = (*_KEPT, *_DROPPED, *_MADE, "$defs")
    unknown = [key for key in held if key not in known and not key.startswith("x-kubernetes-")]
    if unknown:
        raise ValueError(f"no structural schema says {', '.join(unknown)}")


def _bounds(held: Schema) -> Schema:
    made: Schema = {}
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in held:
            made |= {plain: held[exclusive], exclusive: True}
    return made


def _contents(held: Schema, definitions: Schema, *, filled_in: bool) -> Schema:
    made: Schema = {}
    if "properties" in held:
        properties = held["properties"].items()
        made["properties"] = {name: _structural(field, definitions, filled_in=filled_in) for name, field in properties}
    elif isinstance(held.get("additionalProperties"), dict):
        made["additionalProperties"] = _structural(held["additionalProperties"], definitions, filled_in=False)
    if "items" in held:
        made["items"] = _structural(held["items"], definitions, filled_in=False)
    return made


def _description(field: Schema, held: Schema, *, said: bool) -> str:
    """The docstring; behind it the default, where it has one that the API server does not fill in."""
    text = " ".join(str(field.get("description") or held.get("description") or "").split())
    default = field.get("default")
    if not said or default is None or held.get("type") in ("object", "array") or default == "":
        return text
    return f"{text} Default: {json.dumps(default)}."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(helm_template(), encoding="utf-8")
