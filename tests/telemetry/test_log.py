"""A line of the log: a sentence for people, words for machines."""

from __future__ import annotations

import json
import logging

import pytest

from prism.telemetry.log import LogFormat, event, start_log


@pytest.fixture
def line(capsys: pytest.CaptureFixture[str]) -> object:
    """Writes one line in a format, on a logger that is put back afterwards."""
    logger = logging.getLogger("prism")
    before = (logger.handlers[:], logger.level, logger.propagate)
    logger.handlers = []

    def written(form: LogFormat, **words: object) -> str:
        start_log("INFO", form)
        logger.info("Two requests are left.", extra=event("drain_ends", **words))
        return capsys.readouterr().err.rstrip("\n")

    yield written
    logger.handlers, logger.level, logger.propagate = before


def test_a_line_of_text_ends_with_its_words(line: object) -> None:
    text = line(LogFormat.TEXT, cut=2, seconds=1.5)  # type: ignore[operator]
    assert text.endswith("[prism] Two requests are left. event=drain_ends cut=2 seconds=1.5")


def test_a_word_with_spaces_is_quoted(line: object) -> None:
    assert line(LogFormat.TEXT, why='a "b"').endswith('why="a \\"b\\""')  # type: ignore[operator]


def test_what_is_not_known_is_left_out(line: object) -> None:
    assert line(LogFormat.TEXT, cut=None).endswith("event=drain_ends")  # type: ignore[operator]


def test_a_line_of_json_has_the_same_words(line: object) -> None:
    found = json.loads(line(LogFormat.JSON, cut=2))  # type: ignore[operator]
    assert (found["message"], found["event"], found["cut"]) == ("Two requests are left.", "drain_ends", 2)


def test_a_line_break_in_a_word_starts_no_line(line: object) -> None:
    assert "\n" not in line(LogFormat.TEXT, why="a\nb")  # type: ignore[operator]
