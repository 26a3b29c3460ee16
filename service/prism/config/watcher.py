"""How a running process learns that its settings file has changed.

`SettingsWatcher` is one look at the file, given the time; `SettingsThread` looks again and again, and keeps the latest
settings where a scheduler reads them without a lock. The last good settings stay in force whatever the file becomes.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prism.config.document import LIMIT_BYTES, Settings, in_force, parse_document
from prism.errors import ConfigError, InvalidDocument, MissingDocument

logger = logging.getLogger(__name__)

Event = Settings | ConfigError


@dataclass(frozen=True, slots=True)
class _Unreadable:
    why: str


# Content, why there is none, or None where there is no such file.
_Look = bytes | _Unreadable | None


def read_settings(path: Path, pod_name: str | None) -> Settings:
    """The settings in force for the pod, for a start that should fail on a bad file; the defaults without a file.

    Raises:
        InvalidDocument: the file cannot be read or is not a settings document.
    """
    look = _look(path)
    return Settings.defaults() if look is None else _judged(look, pod_name)


class SettingsWatcher:
    """Follows one settings file for one pod. Not thread-safe: one thread polls.

    Attributes:
        settings: the last good ones; the defaults before any.
        refusal: why the file as it is now is not in force; None when it is.
        settling: whether the file has changed and the change is being left to finish.
    """

    def __init__(self, path: Path, pod_name: str | None, *, settle_seconds: float = 0.1) -> None:
        """A change counts once it has read the same for `settle_seconds`, so that half of a file that is being written
        is neither adopted nor refused. The first look counts at once."""
        self.path = path
        self.pod_name = pod_name
        self.settle_seconds = settle_seconds
        self.settings = Settings.defaults()
        self.refusal: ConfigError | None = None
        self._first = True
        self._judged_look: _Look = None
        self._pending: tuple[_Look, float] | None = None

    @property
    def settling(self) -> bool:
        return self._pending is not None

    def poll(self, now: float) -> Event | None:
        """Looks once; `now` in seconds of a monotonic clock.

        Returns the settings when those in force for the pod changed, or are in force again after a refusal; the
        refusal once for each change of the file to something bad; None when there is nothing new.
        """
        look = _look(self.path)
        if not self._settled(look, now):
            return None
        existed = not self._first and (self._judged_look is not None)
        self._first, self._judged_look = False, look
        if look is None:
            return self._refuse(MissingDocument(self._gone())) if existed else None
        try:
            return self._adopt(_judged(look, self.pod_name))
        except InvalidDocument as refusal:
            return self._refuse(refusal)

    def _settled(self, look: _Look, now: float) -> bool:
        """Whether `look` is new and has lasted."""
        if self._first:
            return True
        if look == self._judged_look:
            self._pending = None
            return False
        if self._pending is None or self._pending[0] != look:
            self._pending = (look, now)
        if now - self._pending[1] < self.settle_seconds:
            return False
        self._pending = None
        return True

    def _adopt(self, settings: Settings) -> Settings | None:
        if settings == self.settings and self.refusal is None:
            return None
        self.settings, self.refusal = settings, None
        return settings

    def _refuse(self, refusal: ConfigError) -> ConfigError:
        self.refusal = refusal
        return refusal

    def _gone(self) -> str:
        kept = f"the last good settings ({self.settings.source}, generation {self.settings.generation}) stay in force"
        return f"{self.path} is gone and {kept}: restore it, or write the source defaults to go back to the defaults"


class SettingsThread(threading.Thread):
    """Polls a watcher from `start()` until `stop()`; dies with the process.

    `start()` takes the first look itself, so that `latest()` is the file's from then on. `on_event` is called for
    every event, from that first look in the thread that called `start()`, later in this one.
    """

    def __init__(
        self,
        watcher: SettingsWatcher,
        *,
        poll_seconds: float = 1.0,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name="prism-settings", daemon=True)
        self._watcher = watcher
        self._poll_seconds = poll_seconds
        self._on_event = on_event
        self._clock = clock
        self._stopping = threading.Event()
        # One reference, replaced whole: whoever reads it sees the old settings or the new, never a mixture.
        self._latest = watcher.settings

    def latest(self) -> Settings:
        """The settings in force; cheap enough to ask at every pass, from any thread."""
        return self._latest

    def refusal(self) -> ConfigError | None:
        """Why the file as it is now is not in force; None when it is."""
        return self._watcher.refusal

    def start(self) -> None:
        self._look()
        super().start()

    def stop(self) -> None:
        """Ends the polling; returns at once."""
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(self._pause()):
            self._look()

    def _pause(self) -> float:
        settle = self._watcher.settle_seconds if self._watcher.settling else self._poll_seconds
        return min(settle, self._poll_seconds)

    def _look(self) -> None:
        try:
            event = self._watcher.poll(self._clock())
            self._latest = self._watcher.settings
            if event is not None and self._on_event is not None:
                self._on_event(event)
        except Exception:
            # Whatever one look meets, the next must come: a dead thread would freeze the settings unseen.
            logger.exception("a look at the settings file %s failed", self._watcher.path)


def _judged(look: bytes | _Unreadable, pod_name: str | None) -> Settings:
    if isinstance(look, _Unreadable):
        raise InvalidDocument(look.why, reason="unreadable")
    return in_force(parse_document(look), pod_name)


def _look(path: Path) -> _Look:
    """Opens once, so that all that is read is of one file even when its name is given to another meanwhile."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return _Unreadable(f"{path} is not a regular file, give the path of a settings document")
            return file.read(LIMIT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        return _Unreadable(f"{path} is a directory, give the path of a settings document")
    except OSError as error:
        return _Unreadable(f"{path} cannot be read ({error.strerror}), check its permissions and links")


def _open_without_waiting(path: str, flags: int) -> int:
    """A plain open of a pipe that nobody writes to would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
