"""How settings are written down, and which of them are in force for one pod.

    stable:                      what every pod runs that the candidate does not name
      source: team-a/rag         who wrote it; `defaults` says: back to the defaults
      uid: 0b9e-...              identity of the source, may be empty
      generation: 7
      spec: {...}
    candidate:                   optional: the same fields, and the pods that try it
      ...
      pods: [rag-predictor-0]

Whatever else a file holds is refused with one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, get_args

import yaml
from pydantic import Field, ValidationError, model_validator

from prism.config import plain_yaml
from prism.config.complaint import complaint
from prism.config.schema import ContractModel, PrismSpec, Whole
from prism.errors import InvalidDocument

LIMIT_BYTES = 16 * 1024
DEFAULTS: Final = "defaults"
RIGHT_FORM = "stable: {source: my-settings, generation: 1, spec: {scheduler: {order: Prism}}}"

Role = Literal["stable", "candidate", "defaults"]
Reason = Literal[
    "too_large", "not_utf8", "not_yaml", "empty", "wrong_form", "unknown_field", "missing_field", "invalid_value",
    "unreadable", "missing",
]  # fmt: skip
REASONS: tuple[str, ...] = get_args(Reason)


class Block(ContractModel):
    """One spec with where it comes from."""

    source: str = Field(min_length=1, max_length=320, pattern=r"^[!-~]*$")
    """Who wrote the settings: namespace/name of a PrismConfig, or any word. `defaults` means back to the defaults."""
    uid: str = Field(default="", max_length=64, pattern=r"^[!-~]*$")
    """Identity of the source: two of one name, one after the other, differ in it."""
    generation: Whole = Field(default=0, ge=0, le=2**63 - 1)
    """Counts the changes of the source; spans and status show it."""
    spec: PrismSpec = PrismSpec()
    """The settings."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.source == DEFAULTS:
            if self.spec.model_fields_set:
                raise ValueError("has the source defaults, which takes no spec: remove spec or name another source")
            return self
        for name in ("generation", "spec"):
            if name not in self.model_fields_set:
                raise ValueError(f"lacks {name}, add it")
        return self


class Candidate(Block):
    """A spec that some pods try."""

    pods: tuple[str, ...] = Field(strict=False)
    """Names of the pods that run it."""


class Document(ContractModel):
    """A settings file."""

    stable: Block
    """What every pod runs that the candidate does not name."""
    candidate: Candidate | None = None
    """What the pods that it names run."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in force for one pod.

    Attributes:
        spec: what is set.
        generation: of the source; 0 under the defaults.
        source: who wrote them.
        uid: identity of the source, may be empty.
        role: whether the pod runs what all run, tries a candidate, or runs the defaults.
        digest: 16 hex digits over all of these but the role. It sees what was written, not how: spelling of numbers,
            order of fields and comments do not count, a default that was written out does.
    """

    spec: PrismSpec
    generation: int
    source: str
    uid: str = ""
    role: Role = "stable"
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        canonical = json.dumps(_block(self), sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "digest", hashlib.sha256(canonical.encode()).hexdigest()[:16])

    @classmethod
    def defaults(cls) -> Settings:
        """What is in force where nobody has set anything."""
        return cls(spec=PrismSpec(), generation=0, source=DEFAULTS, role="defaults")


def parse_document(content: bytes) -> Document:
    """Reads a settings file.

    Raises:
        InvalidDocument: with a sentence that names the field and says what to do, and a word of `REASONS`.
    """
    data = _mapping(_text(content))
    if "stable" not in data:
        _refuse_other_forms(data)
    try:
        # Only the spelling of documents counts here, not Python's.
        return Document.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        reason, sentence = complaint(Document, error)
        raise InvalidDocument(sentence, reason=reason) from None


def in_force(document: Document, pod_name: str | None) -> Settings:
    """The settings of the pod: the candidate's if it names the pod, else the stable ones."""
    candidate = document.candidate
    if candidate is not None and pod_name in candidate.pods:
        return _settings(candidate, "candidate")
    return _settings(document.stable, DEFAULTS if document.stable.source == DEFAULTS else "stable")


def to_document(stable: Settings, candidate: Settings | None = None, pods: Sequence[str] = ()) -> str:
    """The settings file, as YAML, that `parse_document` and `in_force` read back as `stable`, or for one of `pods` as
    `candidate`.

    Raises:
        InvalidDocument: it would be larger than a document may be, or hold what a document may not.
    """
    blocks: dict[str, Any] = {"stable": _block(stable)}
    if candidate is not None:
        blocks["candidate"] = {**_block(candidate), "pods": list(pods)}
    text = plain_yaml.dump(blocks)
    parse_document(text.encode())
    return text


def _block(settings: Settings) -> dict[str, Any]:
    spec = settings.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"source": settings.source, "uid": settings.uid, "generation": settings.generation, "spec": spec}


def _settings(block: Block, role: Role) -> Settings:
    return Settings(spec=block.spec, generation=block.generation, source=block.source, uid=block.uid, role=role)


def _text(content: bytes) -> str:
    if len(content) > LIMIT_BYTES:
        raise InvalidDocument(f"the document is larger than {LIMIT_BYTES} bytes, shorten it", reason="too_large")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidDocument(
            f"the document is not UTF-8 at byte {error.start}, save it as UTF-8", reason="not_utf8"
        ) from None


def _mapping(text: str) -> dict[str, Any]:
    try:
        data = plain_yaml.load(text)
    except yaml.YAMLError as error:
        raise InvalidDocument(f"the document is not plain YAML{_where(error)}", reason="not_yaml") from None
    except (ValueError, OverflowError):
        # What the parser says of an escape beyond Unicode or a version of a thousand digits.
        raise InvalidDocument("the document is not YAML: it holds a number out of range", reason="not_yaml") from None
    if data is None:
        raise InvalidDocument(f"the document is empty, write {RIGHT_FORM}", reason="empty")
    if not isinstance(data, dict):
        raise InvalidDocument(f"the document is not a mapping, write {RIGHT_FORM}", reason="wrong_form")
    return data


def _where(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:
        return f": {getattr(error, 'reason', error)}"
    return f", line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _refuse_other_forms(data: dict[str, Any]) -> None:
    """Names the two forms that are most often written in place of the right one."""
    if "kind" in data or "apiVersion" in data:
        raise InvalidDocument(
            f"the document is a Kubernetes object, a settings file holds its spec alone, write {RIGHT_FORM}",
            reason="wrong_form",
        )
    fields = {str(field.alias) for field in PrismSpec.model_fields.values()}
    bare = next((key for key in data if key in fields), None)
    if bare is not None or "spec" in data:
        raise InvalidDocument(
            f"{bare or 'spec'} stands at the top and belongs under stable, write {RIGHT_FORM}", reason="wrong_form"
        )
