"""The larger data where they are found: real passages, questions, agent sessions as tokens, and recorded traffic.

The folder is `$PRISM_DATA`, else a `shared/data` beside the checkout; it has `rag/`, `agent/`, `traces/` and
`tokenizer/`. What takes long to make stays in the cache folder.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import msgspec
from tokenizers import Tokenizer

from prism.bench.models import cache_folder
from prism.bench.workloads import Question
from prism.errors import DeploymentError

PASSAGE_SETS = ("nq", "xquad", "multihop", "banking", "mtrag")
TOKENIZERS = ("qwen3", "bpe16k")

_FORMAT = 1
_MESSAGE = "<|im_start|>"


class DataMissing(DeploymentError):
    """A workload needs data that are not here; the message says where they were looked for."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One request of a session.

    Attributes:
        messages: the prompt, as indices into `Recording.messages`; the last is what opens the answer.
        output_tokens: length of the recorded answer.
        think_s: seconds from the answer before to this request; None where it was not recorded.
    """

    messages: list[int]
    output_tokens: int
    think_s: float | None


class Recording(msgspec.Struct, frozen=True, array_like=True):
    """Recorded sessions. `messages` are tokens and whether it is `system`, `assistant`, `user` or `tool`."""

    messages: list[tuple[str, list[int]]]
    sessions: list[list[Turn]]


def data_folder() -> Path:
    """Raises `DataMissing` where there is none."""
    named = os.environ.get("PRISM_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"
    if not (folder / "rag").is_dir():
        raise DataMissing(f"no data in {folder}: set PRISM_DATA to the folder that has rag/, agent/ and tokenizer/")
    return folder


def passages(name: str, tokenizer: str = "qwen3") -> tuple[tuple[int, ...], ...]:
    """All passages of a set, `title`, newline, `text`, as tokens.

    Raises:
        DataMissing: there are no data.
    """
    source = data_folder() / "rag" / f"{name}.segments.jsonl.gz"
    cache = _cache_path(f"passages-{name}-{tokenizer}", source)
    if not cache.exists():
        texts = [_passage(one) for one in _lines(source)]
        encoded = load_tokenizer(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
        _write(cache, [one.ids for one in encoded])
    rows = msgspec.msgpack.decode(cache.read_bytes(), type=list[list[int]])
    return tuple(tuple(row) for row in rows)


def questions(name: str, tokenizer: str = "qwen3") -> tuple[Question, ...]:
    """All questions of a set with the passages that were retrieved for them, as indices into `passages`.

    Of `mtrag`, each turn of a conversation is a question; of `banking` the passages are those it needs.

    Raises:
        DataMissing: there are no data.
    """
    folder = data_folder() / "rag"
    place = {one["id"]: index for index, one in enumerate(_lines(folder / f"{name}.segments.jsonl.gz"))}
    lines = [one for one in _asked(folder, name) if one[1]]
    encoded = load_tokenizer(tokenizer).encode_batch_fast([text for text, _ in lines], add_special_tokens=False)
    return tuple(
        Question(tuple(row.ids), tuple(place[passage] for passage in found if passage in place))
        for row, (_, found) in zip(encoded, lines, strict=True)
    )


class AnsweredQuestion(msgspec.Struct, frozen=True):
    """A question with an answer that stands word for word in one of its passages.

    Attributes:
        passages: texts, best first by the retriever.
    """

    text: str
    answer: str
    passages: list[str]


def answered_questions(name: str, count: int) -> list[AnsweredQuestion]:
    """Questions of `nq` or `xquad` that have `count` passages, an answer in one of them.

    Raises:
        DataMissing: there are no data.
    """
    folder = data_folder() / "rag"
    texts = {one["id"]: _passage(one) for one in _lines(folder / f"{name}.segments.jsonl.gz")}
    found = []
    for one in _lines(folder / f"{name}.queries.jsonl.gz"):
        passages = [texts[passage] for passage, _ in one["retrieved"][:count] if passage in texts]
        answer = next((answer for answer in one["answers"] if any(answer in text for text in passages)), None)
        if len(passages) == count and answer is not None:
            found.append(AnsweredQuestion(one["question"], answer, passages))
    return found


def _passage(one: Mapping[str, Any]) -> str:
    """The text of a passage as prompts hold it."""
    return f"{one['title']}\n{one['text']}"


def _asked(folder: Path, name: str) -> Iterator[tuple[str, list[str]]]:
    """Questions and the ids of their passages, best first."""
    sessions = folder / f"{name}.sessions.jsonl.gz"
    if sessions.is_file():
        turns = (turn for session in _lines(sessions) for turn in session["turns"])
        yield from ((turn["user"], [found for found, _ in turn["retrieved"]]) for turn in turns)
        return
    for one in _lines(folder / f"{name}.queries.jsonl.gz"):
        # Its retriever finds little by the long role-play texts.
        found = one["gold"] if name == "banking" else [passage for passage, _ in one["retrieved"]]
        yield one["question"], list(found)


def traffic(name: str) -> list[float]:
    """Arrival times of a recorded trace in seconds, ascending from 0.

    Raises:
        DataMissing: there are no data.
    """
    folder = data_folder() / "traces"
    if name.startswith("mooncake"):
        source = _present(folder / f"{name}.jsonl.gz")
        times = [one["timestamp"] / 1e3 for one in _lines(source)]
    else:
        with gzip.open(_present(folder / f"{name}.csv.gz"), "rt", encoding="utf-8") as rows:
            times = [_timestamp(row["TIMESTAMP"]) for row in csv.DictReader(rows)]
    times.sort()
    return [at - times[0] for at in times]


def _timestamp(text: str) -> float:
    # Seven digits after the point: one more than Python reads.
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{fraction or 0}")


def recording(tokenizer: str = "qwen3") -> Recording:
    """All recorded agent sessions, rendered by the tokenizer's own chat template, thinking off.

    Raises:
        DataMissing: there are no data.
    """
    source = data_folder() / "agent" / "trajectories.jsonl.gz"
    cache = _cache_path(f"agents-{tokenizer}", source)
    if not cache.exists():
        _write(cache, _render(source, tokenizer))
    return msgspec.msgpack.decode(cache.read_bytes(), type=Recording)


def load_tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_file(str(data_folder() / "tokenizer" / name / "tokenizer.json"))


def chat_template(name: str) -> jinja2.Template:
    """The tokenizer's template, compiled as Hugging Face's `apply_chat_template` compiles it."""
    config = json.loads((data_folder() / "tokenizer" / name / "tokenizer_config.json").read_text())
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(config["chat_template"])


class MessageTable:
    """Messages as tokens, each once. Special tokens part messages, so each can be tokenised alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._index: dict[str, int] = {}
        self.rows: list[tuple[str, list[int]]] = []

    def indices(self, prompt: str) -> list[int]:
        return [self._of(_MESSAGE + text) for text in prompt.split(_MESSAGE)[1:]]

    def _of(self, text: str) -> int:
        if text not in self._index:
            self._index[text] = len(self.rows)
            self.rows.append((_role(text), self._tokenizer.encode(text, add_special_tokens=False).ids))
        return self._index[text]


def _role(text: str) -> str:
    role = text[len(_MESSAGE) :].split("\n", 1)
    return "tool" if role[0] == "user" and role[1].startswith("<tool_response>") else role[0]


def _render(source: Path, tokenizer: str) -> Recording:
    folder = source.parent
    systems = json.loads((folder / "systems.json").read_text())
    tools = json.loads((folder / "tools.json").read_text())
    table, template = MessageTable(load_tokenizer(tokenizer)), chat_template(tokenizer)
    sessions = [
        [
            Turn(
                table.indices(
                    template.render(
                        messages=_messages(one, systems, request["i"]),
                        tools=tools[one["tools"]],
                        add_generation_prompt=True,
                        enable_thinking=False,
                    )
                ),
                max(1, request["output_tokens"]),
                _think_s(one["requests"], number),
            )
            for number, request in enumerate(one["requests"])
        ]
        for one in _lines(source)
    ]
    return Recording(table.rows, [session for session in sessions if session])


def _messages(one: Mapping[str, Any], systems: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    system = systems[one["system"]]["text"] + one["system_suffix"]
    return [{"role": "system", "content": system}, *one["messages"][:count]]


def _think_s(requests: list[dict[str, Any]], number: int) -> float | None:
    if number == 0:
        return None
    done, arrive = requests[number - 1].get("done_s"), requests[number].get("arrive_s")
    return None if done is None or arrive is None else max(0.0, arrive - done)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def _present(source: Path) -> Path:
    if not source.is_file():
        raise DataMissing(f"no {source.name} in {source.parent}: set PRISM_DATA to the folder that has it")
    return source


def _cache_path(name: str, source: Path) -> Path:
    _present(source)
    digest = hashlib.blake2b(f"{_FORMAT}\n".encode() + source.read_bytes(), digest_size=6).hexdigest()
    return cache_folder() / "workloads" / f"{name}-{digest}.msgpack"


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.part")
    beside.write_bytes(msgspec.msgpack.encode(value))
    beside.replace(path)
