"""`python -m prism.bench.answer_quality`: what PRISM's order of passages does to a model's answers.

Real questions wait in the real scheduler, whose default settings order their passages. A small real model then reads
each question twice, with its passages in the retriever's order and in PRISM's, and says how likely it finds the right
answer: the loss in nats a token of the answer, paired by question. Where PRISM left the order alone both are equal.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from prism.bench.arms import parse_arm
from prism.bench.estimates import Interval, mean_of
from prism.bench.models import smollm2
from prism.bench.rag_load import SYSTEM_PROMPT
from prism.bench.real_data import AnsweredQuestion, answered_questions
from prism.bench.workloads import Corpus, RagPrompts
from prism.engine.enginecore.synthetic import EngineLimits, SyntheticRequest

SETS = ("xquad", "nq")
_WAITING = 24
"""Questions that wait at any time, so that there is a queue to order by."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One question.

    Attributes:
        order: places in the retriever's list, in the order that PRISM chose.
        retrieved_nats, prism_nats: loss a token of the answer, under either order.
    """

    source: str
    question: str
    order: list[int]
    retrieved_nats: float
    prism_nats: float

    @property
    def lost_nats(self) -> float:
        return self.prism_nats - self.retrieved_nats


def drawn(count: int, passages: int, seed: int) -> list[tuple[str, AnsweredQuestion]]:
    """As many questions of each set, mixed."""
    rng = random.Random(f"answer quality {seed}")
    chosen = [
        (name, question)
        for name in SETS
        for question in rng.sample(answered_questions(name, passages), count // len(SETS))
    ]
    rng.shuffle(chosen)
    return chosen


def orders(asked: Sequence[AnsweredQuestion], tokenize: Callable[[str], list[int]]) -> list[list[int]]:
    """The order that PRISM puts each question's passages in, as places in the retriever's list."""
    texts = list(dict.fromkeys(text for question in asked for text in question.passages))
    place = {text: index for index, text in enumerate(texts)}
    corpus = Corpus(tuple(tokenize(SYSTEM_PROMPT)), tuple(tuple(tokenize(text)) for text in texts))
    prompts = RagPrompts(corpus)
    coming = deque(
        prompts.build(str(number), [place[text] for text in question.passages], tokenize(question.text), 24)
        for number, question in enumerate(asked)
    )
    found = dict(_admitted(coming))
    return [list(found[str(number)] or range(len(question.passages))) for number, question in enumerate(asked)]


def _admitted(coming: deque[SyntheticRequest]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each request and the order its passages got, empty where it was left alone."""
    limits = EngineLimits(kv_blocks=4096, max_running=8, step_tokens=2048, vocabulary=1 << 17)
    engine = parse_arm("prism").engine(limits)
    now = 0.0
    engine.use_clock(lambda: now)
    waiting = 0
    while coming or engine.unfinished:
        while coming and waiting < _WAITING:
            engine.add(coming.popleft(), now)
            waiting += 1
        if not engine.can_schedule:
            engine.complete()
            continue
        step = engine.schedule()
        now, waiting = now + 0.05, step.waiting
        for name in step.admitted:
            prompt = engine.scheduler.decisions.prompt(name)  # type: ignore[attr-defined]
            yield name, prompt.order


class Reader:
    """A small chat model that says how likely it finds an answer."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model.eval()  # type: ignore[no-untyped-call]

    def tokens(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def nats(self, question: AnsweredQuestion, order: Sequence[int]) -> float:
        """Mean negative log likelihood of the answer's tokens, after the passages in this order and the question."""
        passages = "\n\n".join(question.passages[index] for index in order)
        prompt = (
            f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n"
            f"<|im_start|>user\n{passages}\n\nQuestion: {question.text}<|im_end|>\n<|im_start|>assistant\n"
        )
        answer = self.tokens(question.answer)
        ids = torch.tensor([[*self.tokens(prompt), *answer]])
        with torch.inference_mode():
            logits = self._model(ids, logits_to_keep=len(answer) + 1).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, ids[0, -len(answer) :])
        return float(losses)


def judge(
    asked: Sequence[tuple[str, AnsweredQuestion]], chosen: Sequence[list[int]], reader: Reader, progress: Progress
) -> list[Judged]:
    """Each question, read in the retriever's order and in the chosen one."""
    task = progress.add_task("questions", total=len(asked))
    out = []
    for (name, question), order in zip(asked, chosen, strict=True):
        as_retrieved = list(range(len(order)))
        before = reader.nats(question, as_retrieved)
        after = before if order == as_retrieved else reader.nats(question, order)
        out.append(Judged(name, question.text, order, before, after))
        progress.advance(task)
    return out


def report(judged: Sequence[Judged]) -> Table:
    """A row for each set and for all."""
    table = Table(
        "questions of", "count", "reordered", "loss, retrieved order", "loss, PRISM's order", "lost nats a token"
    )
    for name, rows in (*((name, [one for one in judged if one.source == name]) for name in SETS), ("all", judged)):
        reordered = sum(one.order != sorted(one.order) for one in rows)
        lost = mean_of([one.lost_nats for one in rows])
        means = (mean_of([one.retrieved_nats for one in rows]), mean_of([one.prism_nats for one in rows]))
        table.add_row(name, str(len(rows)), str(reordered), *(f"{one.value:.3f}" for one in means), _nats(lost))
    return table


def _nats(interval: Interval) -> str:
    return f"{interval.value:+.4f} ({interval.low:+.4f} to {interval.high:+.4f})"


def main(
    questions: Annotated[int, typer.Option(help="How many, half of each set.", min=4)] = 320,
    passages: Annotated[int, typer.Option(help="Passages a question.", min=2)] = 5,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    threads: Annotated[int, typer.Option(help="Of the model; 0 for PyTorch's own choice.", min=0)] = 0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write all questions here.")] = None,
) -> None:
    """Measure what PRISM's order of passages costs in answers."""
    if threads:
        torch.set_num_threads(threads)
    with Progress(console=Console(stderr=True)) as progress:
        reader = Reader(smollm2(lambda _, __: None))
        asked = drawn(questions, passages, seed)
        judged = judge(asked, orders([question for _, question in asked], reader.tokens), reader, progress)
    Console(width=110).print(report(judged))
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(one) for one in judged], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
