"""Helm's own rendering of the chart, and the real schemas that manifests are held against."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from prism.config.crd import custom_resource_definition
from realcluster.kserve import crd_folder
from realcluster.programs import HELM, CannotBuild

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "prism"
KUBERNETES = "1.34"

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Validate = Callable[[Manifest], list[str]]


def _helm() -> Path | None:
    """`HELM`, the one that the cluster tests have built, or the one on the PATH."""
    if named := os.environ.get("HELM"):
        return Path(named)
    try:
        built = HELM.built() / HELM.binary
    except CannotBuild:
        built = Path()
    found = str(built) if built.is_file() else shutil.which("helm")
    return Path(found) if found else None


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm 3, or the test is skipped."""
    found = _helm()
    if found is None:
        pytest.skip("Helm is not here: set HELM to it, put it on the PATH, or run `make test-cluster` once")
    return found


@pytest.fixture(scope="session")
def helm_template(helm: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`helm template` with values from a file and with further arguments, as it ends."""

    def run(
        *arguments: str,
        values: Mapping[str, Any] | None = None,
        release: str = "prism",
        namespace: str = "prism-system",
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(dict(values or {}), file)
            file.flush()
            command = [str(helm), "template", release, str(CHART), "-n", "prism-system", "-f", file.name, *arguments]
            return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm_template: Callable[..., subprocess.CompletedProcess[str]]) -> Render:
    """What `helm template` makes of the chart, as objects."""
    kept: dict[str, str] = {}

    def rendered(*arguments: str, **options: Any) -> list[Manifest]:
        asked = json.dumps([arguments, options])
        if asked not in kept:
            done = helm_template(*arguments, **options)
            assert done.returncode == 0, done.stderr
            kept[asked] = done.stdout
        return [one for one in yaml.load_all(kept[asked], Loader=yaml.CSafeLoader) if one]

    return rendered


@pytest.fixture(scope="session")
def validate() -> Validate:
    """Complaints about a manifest by Kubernetes' schemas, KServe's real CRDs or PRISM's own; empty if it is right."""
    try:
        definitions = _definitions(crd_folder())
    except CannotBuild as why:
        pytest.skip(f"KServe's CRDs are not here: {why}")
    own = custom_resource_definition()
    definitions |= {(own["spec"]["group"], own["spec"]["names"]["kind"]): own}

    def complaints(manifest: Manifest) -> list[str]:
        group, _, version = manifest["apiVersion"].rpartition("/")
        definition = definitions.get((group, manifest["kind"]))
        if definition is not None:
            return [str(error) for error in _schema(definition, version).iter_errors(manifest)]
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            return [str(error)]
        return []

    return complaints


@cache
def _definitions(folder: Path) -> dict[tuple[str, str], Manifest]:
    loaded = (yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader) for path in folder.glob("*.yaml"))
    return {(one["spec"]["group"], one["spec"]["names"]["kind"]): one for one in loaded}


_compiled: dict[tuple[str, str], Any] = {}


def _schema(definition: Manifest, version: str) -> Any:
    key = (definition["metadata"]["name"], version)
    if key not in _compiled:
        found = next(one for one in definition["spec"]["versions"] if one["name"] == version and one["served"])
        schema = closed(found["schema"]["openAPIV3Schema"])
        schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
        _compiled[key] = jsonschema_rs.validator_for(schema)
    return _compiled[key]


def closed(structural: Any) -> Any:
    """A CRD's structural schema as a JSON schema that refuses what the API server would silently prune."""
    if isinstance(structural, list):
        return [closed(one) for one in structural]
    if not isinstance(structural, dict):
        return structural
    schema = {key: value for key, value in structural.items() if not key.startswith("x-") and key not in _UNCHECKED}
    for key in ("items", "not", "additionalProperties"):
        if key in schema:
            schema[key] = closed(schema[key])
    if "properties" in schema:
        schema["properties"] = {name: closed(one) for name, one in schema["properties"].items()}
    if _prunes(structural):
        schema["additionalProperties"] = False
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.pop(exclusive, False):
            schema[exclusive] = schema.pop(bound)
    if structural.get("nullable") and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema


_UNCHECKED = ("default", "description", "format", "nullable")


def _prunes(structural: Mapping[str, Any]) -> bool:
    opened = ("additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource")
    return "properties" in structural and not any(structural.get(key) for key in opened)
