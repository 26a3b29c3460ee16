"""The configuration page."""

from __future__ import annotations

import re
from pathlib import Path

from prism.config.document import REASONS, in_force, parse_document
from prism.config.reference import reference_markdown
from prism.config.schema import PrismSpec

PAGE = reference_markdown()


def row(path: str) -> list[str]:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{path}` |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_bounded_number_has_its_bounds_and_default() -> None:
    _, kind, default, meaning = row("scheduler.coldLane.quota")
    assert (kind, default) == ("number, at least 0, at most 1", "`0.1`")
    assert meaning.startswith("Share of admissions.")


def test_a_choice_lists_its_values() -> None:
    assert row("scheduler.order")[1:3] == ["`Prism`, `Paper`, `FCFS`, `LPM`", '`"Prism"`']


def test_what_is_optional_is_unset_by_default() -> None:
    assert row("tracing.samplingRatio")[1:3] == ["number, at least 0, at most 1", "unset"]
    assert row("rollout")[1:3] == ["mapping", "unset"]


def test_what_a_list_holds_is_listed() -> None:
    assert row("selector.matchExpressions[].key")[1:3] == ["string", "required"]


def test_an_exclusive_bound_is_told_from_an_inclusive_one() -> None:
    assert row("scheduler.coldLane.maxWaitSeconds")[1] == "number, above 0"


def test_an_int_or_string_names_both() -> None:
    assert row("rollout.canary")[1] == "integer or string"


def test_every_field_of_the_spec_has_a_row() -> None:
    listed = re.findall(r"^\| `([A-Za-z]+)` \|", PAGE, flags=re.MULTILINE)
    assert {str(field.alias) for field in PrismSpec.model_fields.values()} <= set(listed)


def test_every_reason_is_explained() -> None:
    assert all(f"| `{reason}` | " in PAGE for reason in REASONS)


def test_the_example_is_a_settings_file() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert in_force(parse_document(example.encode()), None).spec.scheduler.cold_lane.quota == 0.2


def test_the_committed_page_is_the_generated_one(repository: Path) -> None:
    written = (repository / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == PAGE, "python -m prism.config.reference docs/configuration.md"
