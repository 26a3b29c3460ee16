"""How fast this engine computes prompt tokens, measured while it runs."""

from __future__ import annotations


class Pace:
    """An exponential average of seconds per scheduled token, over steps large enough to be prefill."""

    _LEAST_TOKENS = 64
    _SHARE = 0.1
    _LONGEST = 60.0

    def __init__(self, seconds_per_token: float = 1e-4) -> None:
        self._seconds_per_token = seconds_per_token
        self._measured = False
        self._last: tuple[float, int] | None = None

    def seconds_per_token(self) -> float:
        return self._seconds_per_token

    def passed(self, now: float, tokens: int) -> None:
        """A pass that began at `now` scheduled so many tokens; the time to the next pass is what they took."""
        if self._last is not None and self._last[1] >= self._LEAST_TOKENS:
            took = now - self._last[0]
            if 0 < took < self._LONGEST:
                self._note(took / self._last[1])
        self._last = (now, tokens) if tokens else None

    def _note(self, seconds: float) -> None:
        share = self._SHARE if self._measured else 1.0
        self._measured = True
        self._seconds_per_token += (seconds - self._seconds_per_token) * share
