"""Events: what has happened to a PrismConfig, where `kubectl describe` shows it."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime

from prism_operator.api import CONFIGS, EVENTS, Api
from prism_operator.errors import ApiError
from prism_operator.metrics import EVENTS_FAILED
from prism_operator.names import FIELD_MANAGER
from prism_operator.objects import Config, Json

_logger = logging.getLogger(__name__)

_MOST_CHARACTERS = 1024

WARNINGS = frozenset({"Invalid", "Conflict", "Refused", "Unreachable", "NotWritten", "Regressed", "Inconclusive"})
"""Reasons that somebody should look at."""


class Events:
    """Writes Events. One that is not taken is counted and forgotten: it is the status that counts."""

    def __init__(self, api: Api, identity: str) -> None:
        self._api = api
        self._identity = identity

    def tell(self, config: Config, reason: str, note: str) -> None:
        """Says once what has happened; the reason decides whether it is a warning."""
        body = event(config, reason, note, self._identity, datetime.now(UTC))
        try:
            self._api.create(EVENTS, config.meta.namespace, body)
        except ApiError as error:
            EVENTS_FAILED.inc()
            _logger.info("An Event was not taken: %s", error)


def event(config: Config, reason: str, note: str, identity: str, when: datetime) -> Json:
    """An Event in the form of events.k8s.io/v1."""
    meta = config.meta
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": meta.namespace, "name": f"{meta.name[:200]}.{uuid.uuid4().hex[:16]}"},
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning" if reason in WARNINGS else "Normal",
        "reason": reason,
        "action": "Reconcile",
        "note": note[:_MOST_CHARACTERS] or reason,
        "reportingController": FIELD_MANAGER,
        "reportingInstance": identity[:128] or FIELD_MANAGER,
        "regarding": {
            "apiVersion": CONFIGS.api_version,
            "kind": CONFIGS.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
    }
