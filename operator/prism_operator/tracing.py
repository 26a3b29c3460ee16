"""Traces of reconciliations, by the same standard variables as the predictor's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prism.telemetry.provider import Telemetry, start_telemetry

RECONCILE: Final = "prism_operator.reconcile"
WRITE: Final = "prism_operator.write"


class Tracing:
    """Spans of this process; costs next to nothing where no collector is named."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._tracer = telemetry.provider.get_tracer("prism_operator")

    @contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[None]:
        """A span around the block, child of the one around it; an exception is recorded on it and goes on."""
        named = {f"prism_operator.{key}": value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(name, attributes=named):
            yield

    def shutdown(self) -> None:
        """Exports what is left, for a few seconds at most."""
        self._telemetry.shutdown()


def start_tracing(identity: str, namespace: str) -> Tracing:
    """Starts the export that the environment asks for.

    Raises:
        DeploymentError: variables that cannot work together; the message says which to change.
    """
    resource = {"service.instance.id": identity, "service.namespace": namespace}
    return Tracing(start_telemetry("prism-operator", resource))
