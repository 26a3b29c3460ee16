"""The CustomResourceDefinition, made from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from pydantic import Field

from prism.config.crd import custom_resource_definition, helm_template, structural_schema
from prism.config.schema import ContractModel, PrismSpec
from prism.config.status import PrismConfigStatus

COMMITTED = Path(__file__).parents[2] / "charts" / "prism" / "templates" / "crd-prismconfigs.yaml"
VERSION = custom_resource_definition()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema within a schema, with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from walk(part, f"{path}.{name}")
    for within in ("items", "additionalProperties"):
        if isinstance(schema.get(within), dict):
            yield from walk(schema[within], f"{path}[]")


def fields(model: type[ContractModel]) -> set[str]:
    return {str(field.alias) for field in model.model_fields.values()}


def test_the_committed_definition_is_the_schemas() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == helm_template(), "run make crd"


def test_kubernetes_own_schema_takes_it() -> None:
    kubernetes_validate.validate(custom_resource_definition(), "1.34", strict=True)


def test_every_field_of_spec_and_status_is_there() -> None:
    assert set(SPEC["properties"]) == fields(PrismSpec)
    assert set(SCHEMA["properties"]["status"]["properties"]) == fields(PrismConfigStatus)


def test_every_field_is_explained() -> None:
    lacking = [path for path, part in walk(SPEC) if not part.get("description") and not path.endswith("[]")]
    assert lacking == []


def test_no_setting_is_filled_in_that_the_predictor_acts_on() -> None:
    filled_in = {path for path, part in walk(SPEC) if "default" in part}
    assert {path for path in filled_in if path and not path.startswith(".rollout.")} == set()
    assert ".rollout.canary" in filled_in


def test_a_default_that_is_not_filled_in_is_said() -> None:
    quota = SPEC["properties"]["scheduler"]["properties"]["coldLane"]["properties"]["quota"]
    assert quota["description"].endswith("Default: 0.1.")


def test_lists_and_maps_and_texts_of_the_spec_are_bounded() -> None:
    bounds = {"array": "maxItems", "string": "maxLength"}
    lacking = [
        path
        for path, part in walk(SPEC)
        if (bound := bounds.get(part.get("type", ""))) and bound not in part and "enum" not in part
    ]
    assert lacking == []
    assert SPEC["properties"]["selector"]["properties"]["matchLabels"]["maxProperties"] == 32


def test_columns_show_what_an_operator_is_asked_first() -> None:
    names = [column["name"] for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    assert names == ["Ready", "Reason", "Cold-Quota", "Applied", "Hit-Rate", "P99-TTFT", "Age"]


def test_conditions_are_a_map_by_type() -> None:
    conditions = SCHEMA["properties"]["status"]["properties"]["conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])


def test_an_exclusive_bound_is_a_truth_value() -> None:
    active = SPEC["properties"]["scheduler"]["properties"]["weights"]["properties"]["active"]
    assert (active["minimum"], active["exclusiveMinimum"]) == (0, True)


def test_what_cannot_be_said_there_is_refused() -> None:
    class Unsayable(ContractModel):
        """A field of several forms."""

        either: int | str = Field(default=1)
        """One or the other."""

    with pytest.raises(ValueError, match="several forms"):
        structural_schema(Unsayable)
