"""What the operator's tests are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from prism_operator.objects import Config, Service, read_config, read_service

Json = dict[str, Any]


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """A PrismConfig as the API server would send it."""

    def make(
        name: str = "rag", spec: Json | None = None, *, generation: int = 1, created: str = "", **meta: Any
    ) -> Config:
        metadata = {
            "namespace": "team-a",
            "name": name,
            "uid": f"uid-{name}",
            "generation": generation,
            "creationTimestamp": created or "2026-01-01T00:00:00Z",
            **meta,
        }
        return read_config({"metadata": metadata, "spec": spec if spec is not None else {}})

    return make


@pytest.fixture
def make_service() -> Callable[..., Service]:
    """An InferenceService of team-a that names the runtime prism-gpu."""

    def make(
        name: str, labels: Mapping[str, str] | None = None, *, runtime: str = "prism-gpu", **predictor: Any
    ) -> Service:
        model = {"model": {"runtime": runtime}} if runtime else {}
        return read_service(
            {
                "metadata": {"namespace": "team-a", "name": name, "labels": dict(labels or {})},
                "spec": {"predictor": {**model, **predictor}},
            }
        )

    return make
