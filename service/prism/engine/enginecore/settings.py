"""How the scheduler comes by its settings: a thread watches the document, the scheduler takes what it found.

The scheduler asks once a pass and at each arrival, so one pass has one generation. While it is idle it makes no passes;
the thread then announces the settings itself, since the next pass and the next arrival will obey them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from prism.config.document import Settings
from prism.config.watcher import Event, SettingsThread, SettingsWatcher
from prism.engine.enginecore.sender import FactSender
from prism.engine.wire import EngineCoreOptions, SettingsAdopted, SettingsRefused
from prism.errors import ConfigError


class SettingsSource:
    """The settings of one engine.

    Args:
        options: where the document is and who this pod is.
        sender: where adoptions and refusals are announced.
        clock: the time they are announced with.
        is_idle: whether the scheduler has nothing to do; called from the watching thread.
    """

    def __init__(
        self,
        options: EngineCoreOptions,
        sender: FactSender,
        clock: Callable[[], float],
        is_idle: Callable[[], bool],
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._is_idle = is_idle
        self._lock = threading.Lock()
        self._found: Settings | None = Settings.defaults()
        self._announced: Settings | None = None
        self._thread: SettingsThread | None = None
        if options.config_path:
            watcher = SettingsWatcher(Path(options.config_path), options.pod_name)
            self._thread = SettingsThread(watcher, poll_seconds=options.poll_seconds, on_event=self._event)
            self._thread.start()

    def take(self) -> Settings | None:
        """The settings to obey from now on, if they are others than were taken last. For the scheduler's thread."""
        if self._found is None:
            return None
        with self._lock:
            found, self._found = self._found, None
            if found is not None:
                self._announce(found)
        return found

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()

    def _event(self, event: Event) -> None:
        if isinstance(event, ConfigError):
            self._sender.send([SettingsRefused(self._clock(), event.reason, str(event), "")])
            return
        with self._lock:
            self._found = event
            if self._is_idle():
                self._announce(event)

    def _announce(self, settings: Settings) -> None:
        if settings is self._announced:
            return
        self._announced = settings
        spec = settings.spec.model_dump(mode="json", by_alias=True)
        self._sender.send(
            [
                SettingsAdopted(
                    self._clock(),
                    settings.generation,
                    settings.digest,
                    settings.source,
                    settings.uid,
                    settings.role,
                    spec,
                )
            ]
        )
