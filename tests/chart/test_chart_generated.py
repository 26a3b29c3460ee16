"""The chart's files that are made from others, and the comments that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from prism_chart.__main__ import FILES
from prism_chart.values import CHART, read_values
from prism_chart.values_schema import values_schema


@pytest.mark.parametrize("name", FILES)
def test_generated_file_is_current(name: str) -> None:
    make: Callable[[], str] = FILES[name]
    assert (CHART / name).read_text() == make(), "run `make chart`"


def test_every_value_is_explained_above_it() -> None:
    silent = [leaf.name for value in read_values() for leaf in value.leaves() if len(leaf.about) < 10]
    assert silent == []


def test_readme_has_a_row_for_every_value() -> None:
    readme = (CHART / "README.md").read_text()
    assert [leaf.name for value in read_values() for leaf in value.leaves() if f"| `{leaf.name}` |" not in readme] == []


def _open_objects(schema: Any, path: str = "") -> list[str]:
    """Objects with known fields that let in unknown ones."""
    if not isinstance(schema, dict):
        return []
    found = [path] if "properties" in schema and schema.get("additionalProperties") is not False else []
    for key, value in schema.get("properties", {}).items():
        found += _open_objects(value, f"{path}.{key}")
    return found + _open_objects(schema.get("items"), f"{path}[]")


def test_values_schema_lets_no_unknown_field_in() -> None:
    schema = values_schema()
    definitions = [one for name, body in schema["$defs"].items() for one in _open_objects(body, name)]
    assert _open_objects(schema) + definitions == []


def test_defaults_pass_the_values_schema() -> None:
    jsonschema_rs.validator_for(values_schema()).validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_templates_are_named_for_component_and_kind() -> None:
    kinds = (
        "clusterrole", "clusterrolebinding", "configmap", "deployment", "job", "networkpolicy", "pod",
        "poddisruptionbudget", "podmonitor", "prometheusrule", "role", "rolebinding", "service", "serviceaccount",
        "servicemonitor", "servingruntime",
    )  # fmt: skip
    names = [path.stem for path in (CHART / "templates").rglob("*.yaml") if not path.name.startswith("crd-")]
    assert [name for name in names if name.rpartition("-")[2] not in kinds or "-" not in name] == []


def test_readme_explains_every_alert() -> None:
    rules = (CHART / "templates" / "predictor-prometheusrule.yaml").read_text()
    alerts = [line.partition("alert:")[2].strip() for line in rules.splitlines() if "- alert:" in line]
    readme = (CHART / "README.md").read_text()
    assert alerts
    assert [alert for alert in alerts if f"| {alert} |" not in readme] == []


def test_chart_version_is_the_project_s(repository: Path) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'version = "{chart["appVersion"]}"' in (repository / "pyproject.toml").read_text()
