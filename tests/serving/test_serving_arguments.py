"""The command line: vLLM's, KServe's and PRISM's flags in one parser (case E7)."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from prism.engine.frontend.arguments import parse_arguments
from prism.errors import UnsupportedArgument
from prism.serving.kserve_flags import add_kserve_flags
from prism.serving.server import apply_server_flags


def parse(*argv: str, mounted: Path = Path("/nowhere")) -> Namespace:
    return parse_arguments(argv, add_kserve_flags, mounted)[0]


def test_the_last_of_two_equal_flags_wins() -> None:
    args = parse("--model_name={{.Name}}", "--http_port", "1000", "--model_name", "x", "--http_port", "2000")
    assert (args.served_model_name, args.port) == (["x"], 2000)


def test_json_with_spaces_and_quotes_survives() -> None:
    args = parse("--hf-overrides", '{"a key": "it\'s \\"quoted\\"", "n": [1, 2]}')
    assert args.hf_overrides == {"a key": 'it\'s "quoted"', "n": [1, 2]}


def test_dotted_json_is_still_vllms() -> None:
    assert parse("--hf-overrides.rope.theta", "10").hf_overrides == {"rope": {"theta": 10}}


@pytest.mark.parametrize("flag", ["--no-such-flag", "--max-model-len=abc", "--admin-port=99999"])
def test_a_flag_that_cannot_be_honoured_stops_the_start_with_a_sentence(flag: str) -> None:
    with pytest.raises(UnsupportedArgument, match=r"\.$"):
        parse(flag)


def test_underscores_and_dashes_are_one() -> None:
    assert parse("--max_model_len", "100").max_model_len == parse("--max-model-len", "100").max_model_len == 100


def test_the_port_has_one_default_and_two_names() -> None:
    assert (parse().port, parse("--port", "9").port, parse("--http-port", "9").port) == (8080, 9, 9)


def test_the_two_ports_must_differ() -> None:
    with pytest.raises(UnsupportedArgument, match="both 9000"):
        parse("--port", "9000", "--admin-port", "9000")


def test_model_name_stands_before_other_names() -> None:
    assert parse("--served-model-name", "a", "b", "--model_name", "b").served_model_name == ["b", "a"]


def test_the_mounted_model_is_the_default_where_it_exists(tmp_path: Path) -> None:
    assert parse(mounted=tmp_path).model == str(tmp_path)
    assert parse("--model", "other", mounted=tmp_path).model == "other"
    assert parse("positional", mounted=tmp_path).model == "positional"


def test_without_a_mounted_model_vllms_own_default_stands() -> None:
    assert parse().model == "Qwen/Qwen3-0.6B"


def test_cached_tokens_are_reported_unless_told_otherwise() -> None:
    assert parse().enable_prompt_tokens_details
    assert not parse("--no-enable-prompt-tokens-details").enable_prompt_tokens_details


def test_the_launchers_key_may_not_be_given() -> None:
    with pytest.raises(UnsupportedArgument, match="prism"):
        parse("--additional-config", '{"prism": {}}')


def test_prisms_own_arguments_are_read() -> None:
    own = parse_arguments(["--prism-config", "/etc/x.yaml", "--admin-port", "0", "--step-timeout", "5"])[1]
    assert (own.config_path, own.admin_port, own.step_timeout_s) == ("/etc/x.yaml", 0, 5.0)


def test_a_recording_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    assert parse_arguments(["--record", str(tmp_path / "x"), "--record-max-mb", "2"])[1].record_max_bytes == 2 << 20
    for path in (tmp_path, tmp_path / "nowhere" / "x"):
        with pytest.raises(UnsupportedArgument, match="name a file in a folder"):
            parse_arguments(["--record", str(path)])


@pytest.fixture
def access_log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("uvicorn.access")
    before = list(logger.filters)
    yield logger
    logger.filters[:] = before


def test_endpoints_can_be_left_out_of_the_access_log(access_log: logging.Logger) -> None:
    flag = ("--disable-access-log-for-endpoints", "/metrics, /v2/health/ready")
    apply_server_flags(uvicorn.Config("app", log_config=None), parse("--model", "m", *flag))

    def shown(path: str) -> bool:
        arguments = ("127.0.0.1:1", "GET", path, "1.1", 200)
        record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None)
        return bool(access_log.filter(record))

    paths = ("/metrics", "/metrics?name=x", "/v2/health/ready", "/v1/models", "/metrics/x")
    assert [shown(path) for path in paths] == [False, False, False, True, True]
