"""`values.schema.json`, made from the values, their comments and the settings' schema. Nothing unknown is let in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from prism.config.schema import PrismSpec
from prism_chart.values import Value, read_values

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_NAME: Final[Schema] = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", "maxLength": 253}
_QUANTITY: Final[Schema] = {"type": ["string", "number"]}
_SECONDS: Final[Schema] = {"type": "integer", "minimum": 1}
_PORTS: Final[Schema] = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}}


def _map_of(schema: Schema) -> Schema:
    # null takes a key of the defaults away.
    return {"type": "object", "additionalProperties": {"anyOf": [schema, {"type": "null"}]}}


def _list_of(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _closed(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _fraction(pattern: str, *, null: bool = False, **bounds: float) -> Schema:
    # Helm's `--set` takes whole numbers for numbers and fractions for text.
    number: Schema = {"type": ["number", "null"] if null else "number", **bounds}
    return {"anyOf": [number, {"type": "string", "pattern": pattern}]}


_KUBERNETES: Final[Schema] = {"type": "object"}
_ENV: Final = _list_of(_closed(("name",), name={"type": "string", "minLength": 1}, value=_TEXT, valueFrom=_KUBERNETES))

# How a value is checked that its default alone does not tell; `*` stands for any name.
_FORMS: Final[Mapping[str, Schema]] = {
    "nameOverride": _NAME,
    "fullnameOverride": _NAME,
    "commonLabels": _map_of(_TEXT),
    "imagePullSecrets": _list_of(_closed(("name",), name={"type": "string", "minLength": 1})),
    "rbac.namespaces": _list_of({**_NAME, "minLength": 1}),
    "*.image.repository": {"type": "string", "minLength": 1},
    "*.image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "*.extraArgs": _list_of(_TEXT),
    "*.extraEnv": _ENV,
    "*.resources": _closed((), requests=_map_of(_QUANTITY), limits=_map_of(_QUANTITY)),
    "*.nodeSelector": _map_of(_TEXT),
    "*.tolerations": _list_of(_KUBERNETES),
    "*.affinity": _KUBERNETES,
    "*.podAnnotations": _map_of(_TEXT),
    "*.annotations": _map_of(_TEXT),
    "*.labels": _map_of(_TEXT),
    "operator.replicas": {"type": "integer", "minimum": 0},
    "operator.logLevel": {"enum": ["debug", "info", "warning", "error"]},
    "operator.serviceAccount.name": _NAME,
    "operator.networkPolicy.metricsFrom": _list_of(_KUBERNETES),
    "operator.networkPolicy.apiServerPorts": _PORTS,
    # Named as vLLM names them; what they hold is vLLM's to judge.
    "runtimes.*.engineArgs": {"type": "object", "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9._-]*$"}},
    "runtimes.*.priority": {"type": "integer", "minimum": 1},
    "runtimes.*Seconds": _SECONDS,
    "runtimes.*.drainDelaySeconds": {"type": "integer", "minimum": 0},
    "runtimes.*.sharedMemory": {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?([kMGT]i?)?$"},
    "runtimes.*.caches.*": {"type": "object", "minProperties": 1, "maxProperties": 1},
    "otlp.endpoint": {"type": "string", "pattern": "^(https?://[^/]+(/.*)?)?$"},
    "otlp.protocol": {"enum": ["", "grpc", "http/protobuf"]},
    "otlp.samplingRatio": _fraction("^(0([.][0-9]+)?|1([.]0+)?)$", minimum=0, maximum=1, null=True),
    "defaultConfig.spec": {"$ref": "#/$defs/PrismSpec"},
    "*.interval": {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"},
    "monitoring.rules.admissionWaitSeconds": _fraction("^[0-9]*[.]?[0-9]+$", exclusiveMinimum=0),
    "monitoring.rules.coldLaneOvertakes": {"type": "integer", "minimum": 0},
}


def text() -> str:
    """The file's content."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


def values_schema() -> Schema:
    """A closed JSON schema of the chart's values."""
    settings = PrismSpec.model_json_schema(by_alias=True)
    definitions = settings.pop("$defs")
    schema = _object(read_values())
    # Helm hands a parent chart's global values to every chart.
    schema["properties"]["global"] = {"type": "object"}
    definitions = _without_titles({**definitions, "PrismSpec": settings})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$defs": definitions, **schema}


def _object(values: tuple[Value, ...]) -> Schema:
    properties = {value.path[-1]: _schema(value) for value in values}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _schema(value: Value) -> Schema:
    form = _object(value.inner) if value.inner else _form(value)
    return {"description": value.about, **form} if value.about and "$ref" not in form else form


def _form(value: Value) -> Schema:
    """The longest pattern that fits the value's name, else the type of its default."""
    fitting = [pattern for pattern in _FORMS if fnmatchcase(value.name, pattern)]
    if fitting:
        return _FORMS[max(fitting, key=len)]
    if isinstance(value.default, bool):
        return {"type": "boolean"}
    if isinstance(value.default, str):
        return _TEXT
    raise ValueError(f"values.yaml: {value.name} has no form; add one to {__name__}")


def _without_titles(schema: Any) -> Any:
    """pydantic names every field once more."""
    if isinstance(schema, list):
        return [_without_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_titles(one) for key, one in schema.items() if key != "title" or not isinstance(one, str)}
