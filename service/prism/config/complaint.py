"""One sentence for what a document has wrong: the field, in the spelling of documents, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from prism.config.schema import ContractModel, part_of, whole

Location = Sequence[int | str]

_PHRASES = {
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of names to text",
    "tuple_type": "must be a list",
    "too_long": "must have at most {max_length} entries",
    "string_type": "must be text (put it in quotes)",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must be printable ASCII without spaces",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be {expected}",
}
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_./-]{1,64}")
_SHOWN_OTHERS = 3


def complaint(model: type[ContractModel], error: ValidationError) -> tuple[str, str]:
    """The machine word and the sentence for the first thing wrong; the others are named behind it."""
    first, *others = error.errors(include_url=False)
    sentence = f"{dotted(first['loc'])} {_verdict(model, first)}"
    if others:
        named = ", ".join(dotted(other["loc"]) for other in others[:_SHOWN_OTHERS])
        more = len(others) - _SHOWN_OTHERS
        sentence += f" (wrong too: {named}{f' and {more} more' if more > 0 else ''})"
    return _word(first["type"]), sentence


def dotted(location: Location) -> str:
    """`stable.spec.scheduler.weights.active`, `candidate.pods[0]`."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{_shown_key(step)}"
    return path.removeprefix(".")


def _word(kind: str) -> str:
    return {"extra_forbidden": "unknown_field", "missing": "missing_field"}.get(kind, "invalid_value")


def _verdict(model: type[ContractModel], error: ErrorDetails) -> str:
    kind, given = error["type"], error["input"]
    if kind == "missing":
        return "is missing, add it"
    if kind == "extra_forbidden":
        return f"is not a field here: {_proposal(model, error['loc'])}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if given is None:
        return "is empty: give it a value or remove the line"
    bounds = {name: whole(bound) for name, bound in error.get("ctx", {}).items()}
    phrase = _PHRASES[kind].format(**bounds) if kind in _PHRASES else f"is wrong ({error['msg']})"
    return f"{phrase}, not {_shown(given)}"


def _proposal(model: type[ContractModel], location: Location) -> str:
    fields = _fields_beside(model, location)
    close = difflib.get_close_matches(str(location[-1]).replace("_", ""), fields, n=1)
    return f"did you mean {close[0]}?" if close else f"the fields are {', '.join(fields)}"


def _fields_beside(model: type[ContractModel], location: Location) -> list[str]:
    """The fields, as documents spell them, of the mapping that holds the last step of `location`."""
    for step in location[:-1]:
        fields = {str(field.alias): field for field in model.model_fields.values()}
        model = part_of(fields[step].annotation) or model if isinstance(step, str) else model
    return [str(field.alias) for field in model.model_fields.values()]


def _shown_key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else _shown(key)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = ascii(value)
    return text if len(text) <= 48 else f"{text[:44]}...{text[-1]}"
