"""Whether the API server's PrismConfig is as new as the operator: an older one drops fields without a word."""

from __future__ import annotations

from collections.abc import Iterator

from prism.config.crd import NAME, structural_schema
from prism.config.schema import PrismSpec
from prism_operator.objects import Json


def outdated(served: Json) -> str:
    """What to do about a served schema that lacks what this operator knows; empty if it lacks nothing.

    `served` is the schema of the whole object, empty where the kind is not served at all.
    """
    if not served:
        return f"the cluster does not serve {NAME}: install the chart's CustomResourceDefinition"
    missing = list(_missing(structural_schema(PrismSpec), served.get("properties", {}).get("spec", {}), "spec"))
    if not missing:
        return ""
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"the cluster's {NAME} is older than this operator and would drop {shown}: apply the chart's CRD"


def _missing(own: Json, served: Json, path: str) -> Iterator[str]:
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    for value in own.get("enum", ()):
        if value not in served.get("enum", (value,)):
            yield f"{path}={value}"
    for name, part in own.get("properties", {}).items():
        theirs = served.get("properties", {}).get(name)
        if theirs is None:
            yield f"{path}.{name}"
        else:
            yield from _missing(part, theirs, f"{path}.{name}")
    if "items" in own:
        yield from _missing(own["items"], served.get("items", {}), f"{path}[]")
