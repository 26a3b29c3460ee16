"""What users of the `openai` client do, against the served model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(660)]

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}}
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}]


@pytest.fixture
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/openai/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_chat_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=5)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 5


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**options)
    chunks = client.chat.completions.create(**options, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content


def test_two_choices_come_back(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4, n=2)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_several_prompts_are_completed(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["one", "two"], max_tokens=3, n=2)
    assert len(answer.choices) == 4


@pytest.fixture(scope="module")
def no_blanks(tokenizer_folder: Path) -> dict[str, int]:
    """A logit bias against white space, of which a random model would put any amount into its JSON."""
    vocabulary = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    texts = {number: vocabulary.decode([number]) for number in range(vocabulary.get_vocab_size())}
    return {str(number): -100 for number, text in texts.items() if text and not text.strip()}


def test_a_named_tool_is_called(client: openai.OpenAI, no_blanks: dict[str, int]) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, tools=[WEATHER], tool_choice=choice, max_tokens=200, logit_bias=no_blanks
    )
    calls: Any = answer.choices[0].message.tool_calls
    assert calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in ("Paris", "Rome")


def test_structured_output_fits_its_schema(client: openai.OpenAI, no_blanks: dict[str, int]) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, response_format=schema, max_tokens=200, logit_bias=no_blanks
    )
    assert json.loads(answer.choices[0].message.content or "")["city"] in ("Paris", "Rome")


def test_log_probabilities_come_back(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [len(token.top_logprobs) for token in logprobs.content or []] == [2, 2, 2]


def test_responses_answer(client: openai.OpenAI) -> None:
    assert client.responses.create(model="tiny", input="hello", max_output_tokens=16).output


def test_the_prism_object_travels_as_extra_body(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=3, extra_body={"prism": {"reorder": True}}
    )
    assert raw.headers["x-prism-reordered"] == "false"


def test_a_bad_prism_object_is_the_clients_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"prism\.colour"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"prism": {"colour": "red"}})


def test_an_unknown_model_is_the_clients_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=MESSAGES)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_a_model_is_retrieved(client: openai.OpenAI) -> None:
    assert client.models.retrieve("tiny").id == "tiny"
