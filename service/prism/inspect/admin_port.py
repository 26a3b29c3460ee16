"""What the inspecting commands read: the admin port of one running predictor."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from prism.errors import UnansweredQuestion

TIMEOUT_SECONDS = 10.0

T = TypeVar("T")


class AdminPort:
    """Asks one predictor.

    Args:
        address: of its admin port; `http://` may be left out.
    """

    def __init__(self, address: str, timeout_s: float = TIMEOUT_SECONDS) -> None:
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._timeout_s = timeout_s

    def ask(self, answer: type[T], *path: str, **query: str) -> T:
        """What `GET /prism/v1/…` answers.

        Raises:
            UnansweredQuestion: nobody is there, or what answers is not PRISM's admin port, or it says no.
        """
        url = "/".join([self.address, "prism", "v1", *(quote(part, safe="") for part in path)])
        try:
            response = httpx.get(url, params=query, timeout=self._timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnansweredQuestion(self._nobody(error)) from error
        if response.is_error:
            raise UnansweredQuestion(self._refusal(response))
        try:
            return msgspec.json.decode(response.content, type=answer)
        except msgspec.MsgspecError as error:
            raise UnansweredQuestion(
                f"{self.address} answers, but not as this version's admin port ({error}): give the admin port "
                "(8090 unless --admin-port says otherwise), and use the predictor's version of prism."
            ) from error

    def _nobody(self, error: Exception) -> str:
        what = str(error) or type(error).__name__
        return (
            f"Nobody answers at {self.address} ({what}): name a running predictor's admin port with --admin; "
            "in a cluster first `kubectl port-forward POD 8090`."
        )

    def _refusal(self, response: httpx.Response) -> str:
        try:
            return str(response.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return (
                f"{self.address} answers {response.status_code} for {response.url.path}: it is not a predictor's "
                "admin port (8090 unless --admin-port says otherwise)."
            )
