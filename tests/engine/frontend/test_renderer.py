"""PRISM's renderer beside stock vLLM's: the same tokens, and a plan."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest
from vllm.renderers import BaseRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from prism.config.schema import Reorder
from prism.core.segments import permute_plan, permute_runs
from prism.engine.frontend.mistakes import RefusedRequest
from prism.engine.frontend.plan import PLAN_KEY
from prism.engine.frontend.renderer import PrismRenderer

_TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": {"type": "object"}}}
    for name in ("look_up", "write_down")
]
_PASSAGES = ["The river rose in 1987.", "Paris is the capital of France.", "It is raining in Rome, they say."]


def _user(*texts: str) -> dict[str, Any]:
    if len(texts) == 1:
        return {"role": "user", "content": texts[0]}
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


_SYSTEM = {"role": "system", "content": "Answer shortly."}


async def test_system_documents_and_question_are_told_apart(pair: Any) -> None:
    texts = await pair().texts(messages=[_SYSTEM, _user(*_PASSAGES, "What now?")])
    assert texts == [
        ("system", "<|im_start|>system\nAnswer shortly."),
        *[("document", passage + "\n") for passage in _PASSAGES],
        ("private", "What now?<|im_end|>\n<|im_start|>assistant\n"),
    ]


async def test_each_tool_is_a_segment_and_the_templates_preamble_is_system(pair: Any) -> None:
    texts = await pair().texts(messages=[_user("hi")], tools=_TOOLS)
    assert [kind for kind, _ in texts] == ["system", "tool_schema", "tool_schema", "private"]
    assert texts[0][1].endswith("<tools>\n")
    assert [json.loads(text)["function"]["name"] for _, text in texts[1:3]] == ["look_up", "write_down"]


async def test_an_agents_turns_are_history_and_tool_output(pair: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "rain"}'}}
    messages = [
        _SYSTEM,
        _user("Is it raining?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "It rains in Rome."},
    ]
    texts = await pair().texts(messages=messages, tools=_TOOLS)
    assert [kind for kind, _ in texts][-3:] == ["history", "history", "tool_output"]
    assert texts[-2][1].startswith("look_up")
    assert '{"q": "rain"}' in texts[-2][1]


async def test_several_parts_of_an_earlier_message_are_documents_and_history(pair: Any) -> None:
    messages = [_user(*_PASSAGES[:2], "Which?"), {"role": "assistant", "content": "Paris."}, _user("Why?")]
    kinds = [kind for kind, _ in await pair().texts(messages=messages)]
    assert kinds == ["document", "document", "history", "history", "private"]


async def test_a_prefix_of_the_answer_is_private_too(pair: Any) -> None:
    messages = [_user("Say yes."), {"role": "assistant", "content": "Yes, I"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    texts = await pair("chatml").texts(**body)
    assert [kind for kind, _ in texts] == ["system", "private"]
    assert texts[-1][1].endswith("Yes, I")


@pytest.mark.parametrize("template", [None, "llama2", "llama3", "mistral", "chatml", "thinking"])
async def test_every_template_gives_the_question_its_segment(pair: Any, template: str | None) -> None:
    messages = [_user("One?"), {"role": "assistant", "content": "First answer."}, _user("Two, then?")]
    texts = await pair(template).texts(messages=messages)
    kind, text = texts[-1]
    assert kind == "private"
    assert ", then?" in text
    assert [k for k, _ in texts if k != "system"] == ["history", "history", "private"]


async def test_the_templates_own_system_prompt_is_a_segment(pair: Any) -> None:
    texts = await pair("chatml").texts(messages=[_user("hi")])
    assert texts[0][0] == "system"
    assert "named SmolLM" in texts[0][1]


async def test_indented_tools_are_segments(pair: Any) -> None:
    texts = await pair("llama3").texts(messages=[_user("hi")], tools=_TOOLS)
    assert [kind for kind, _ in texts] == ["system", "tool_schema", "tool_schema", "private"]


async def test_a_llama_style_prompt_has_exactly_one_start_token(pair: Any) -> None:
    own = await pair("llama2").input(pair("llama2").prism, {"messages": [_SYSTEM, _user("hi")]})
    assert own["prompt"].count("<s>") == 1
    plan, ids = await pair("llama2").plan(messages=[_SYSTEM, _user("hi")])
    assert plan.segments[0].start == 0
    assert len(ids) == plan.segments[-1].end


async def test_tools_in_another_order_are_another_prefix(pair: Any) -> None:
    one, ids = await pair().plan(messages=[_user("hi")], tools=_TOOLS)
    two, other = await pair().plan(messages=[_user("hi")], tools=_TOOLS[::-1])
    a, b = (plan.resolve(tokens, "") for plan, tokens in ((one, ids), (two, other)))
    assert [s.identity for s in a.segments[1:3]] == [s.identity for s in b.segments[1:3]][::-1]
    assert (a.movable, b.movable) == ((), ())


async def test_a_second_turn_is_measured_as_it_is_rendered_and_not_as_it_was_answered(pair: Any) -> None:
    thought = "<think>\nThey greet me, so I greet them.\n</think>\n\nHello!"
    messages = [_user("hi"), {"role": "assistant", "content": thought}, _user("And now?")]
    texts = await pair("thinking").texts(messages=messages)
    assert [text for kind, text in texts if kind == "history"][1] == "Hello!"


async def test_content_as_a_string_and_as_one_text_part_is_the_same(pair: Any) -> None:
    whole = await pair().plan(messages=[_user("hi there")])
    part = await pair().plan(messages=[{"role": "user", "content": [{"type": "text", "text": "hi there"}]}])
    assert whole == part


async def test_documents_are_segments_where_the_template_renders_them(pair: Any) -> None:
    documents = [{"title": f"T{i}", "text": text} for i, text in enumerate(_PASSAGES)]
    texts = await pair("rag").texts(messages=[_user("What?")], documents=documents)
    assert [kind for kind, _ in texts] == ["document"] * 3 + ["private"]
    assert texts[1][1].endswith("1\nParis is the capital of France.\n\n")


async def test_documents_that_the_template_would_drop_are_refused(pair: Any) -> None:
    body = {"messages": [_user("What?")], "documents": [{"text": "unseen"}]}
    with pytest.raises(RefusedRequest, match="text parts of a user message") as refused:
        await pair("chatml").input(pair("chatml").prism, body)
    assert refused.value.param == "documents[0]"


async def test_the_callers_kind_and_id_stand_over_what_the_api_says(pair: Any) -> None:
    hints = [{"message": 0, "kind": "history", "id": "s"}, {"message": 1, "part": 0, "kind": "tool_output"}]
    plan, _ = await pair().plan(messages=[_SYSTEM, _user("a passage.", "What?")], prism={"segments": hints})
    assert [(str(s.kind), s.group) for s in plan.segments] == [
        ("history", "s"),
        ("tool_output", None),
        ("private", None),
    ]


async def test_what_was_decided_while_rendering_is_of_one_generation(pair: Any) -> None:
    plan, _ = await pair().plan(messages=[_user("hi")], prism={"deadline_seconds": 1.5})
    assert (plan.render_generation, plan.deadline_seconds) == (7, 1.5)


async def _reordered(pair: Any, template: str | None, body: dict[str, Any], permuted: Any) -> None:
    """Every order's tokens are stock vLLM's for the request in that order."""
    plan, ids = await pair(template).plan(**body)
    assert plan.reorder_refused is None
    for order in itertools.permutations(range(len(plan.movable))):
        stock = await pair(template).input(pair(template).stock, permuted(order))
        assert permute_runs(ids, plan.movable, order) == stock["prompt_token_ids"]
        assert len(permute_plan(plan.resolve(ids, ""), order).segments) == len(plan.segments)


@pytest.mark.parametrize("template", [None, "llama2", "chatml"])
async def test_text_parts_in_any_order_are_stock_vllms_for_that_order(pair: Any, template: str | None) -> None:
    def body(order: tuple[int, ...]) -> dict[str, Any]:
        return {"messages": [_SYSTEM, _user(*[_PASSAGES[i] for i in order], "What?")], "prism": {"reorder": True}}

    await _reordered(pair, template, body((0, 1, 2)), body)


async def test_documents_in_any_order_are_stock_vllms_for_that_order(pair: Any) -> None:
    def body(order: tuple[int, ...]) -> dict[str, Any]:
        documents = [{"title": f"T{i}", "text": _PASSAGES[i]} for i in order]
        return {"messages": [_user("What?")], "documents": documents, "prism": {"reorder": True}}

    await _reordered(pair, "rag", body((0, 1, 2)), body)


async def test_the_setting_alone_moves_documents_but_not_text_parts(pair: Any) -> None:
    documents = [{"title": f"T{i}", "text": text} for i, text in enumerate(_PASSAGES)]
    entries, _ = await pair("rag", Reorder.DOCUMENTS).plan(messages=[_user("What?")], documents=documents)
    parts, _ = await pair(None, Reorder.DOCUMENTS).plan(messages=[_user(*_PASSAGES, "What?")])
    assert (len(entries.movable), len(parts.movable)) == (3, 0)


async def test_numbered_documents_stay_and_the_reason_is_told(pair: Any) -> None:
    documents = [{"text": text} for text in _PASSAGES]
    body = {"messages": [_user("What?")], "documents": documents, "prism": {"reorder": True}}
    plan, _ = await pair("rag_numbered").plan(**body)
    assert plan.movable == ()
    assert "numbered labels" in plan.reorder_refused


@pytest.mark.parametrize(
    "extra",
    [{"n": 2}, {"prompt_logprobs": 1}, {"echo": True}, {"return_token_ids": True}, {"use_beam_search": True}],
    ids=lambda extra: next(iter(extra)),
)
async def test_requests_that_show_the_order_keep_it_and_are_told(pair: Any, extra: dict[str, Any]) -> None:
    plan, _ = await pair().plan(messages=[_user(*_PASSAGES, "What?")], prism={"reorder": True}, **extra)
    assert plan.movable == ()
    assert plan.reorder_refused is not None
    assert len(plan.segments) == 4


async def test_documents_of_an_earlier_turn_stay(pair: Any) -> None:
    messages = [_user(*_PASSAGES, "What?"), {"role": "assistant", "content": "Rain."}, _user("Where?")]
    plan, _ = await pair().plan(messages=messages, prism={"reorder": True})
    assert plan.movable == ()
    assert plan.reorder_refused == "fewer than two documents that can move"


async def test_a_bad_object_is_a_mistake_that_vllm_answers_with_400(pair: Any) -> None:
    with pytest.raises(RefusedRequest) as refused:
        await pair().input(pair().prism, {"messages": [_user("hi")], "prism": {"reorder": "yes"}})
    error = create_error_response(refused.value).error
    assert (error.code, error.type, error.param) == (400, "BadRequestError", "prism.reorder")
    assert "boolean" in error.message


async def test_a_plain_prompt_has_an_empty_plan_and_a_reason(pair: Any) -> None:
    request = CompletionRequest.model_validate({"model": "m", "prompt": ["a", "b"], "prism": {"reorder": True}})
    inputs: Any = await pair().prism.render_completion(request)
    assert [i[PLAN_KEY].segments for i in inputs] == [(), ()]
    assert inputs[0][PLAN_KEY].reorder_refused is not None


async def test_a_hint_in_a_plain_prompt_is_refused(pair: Any) -> None:
    hint = {"message": 0, "kind": "document"}
    request = CompletionRequest.model_validate({"model": "m", "prompt": "a", "prism": {"segments": [hint]}})
    with pytest.raises(RefusedRequest, match="no messages"):
        await pair().prism.render_completion(request)


async def test_responses_render_through_the_same_seam(pair: Any) -> None:
    request = ResponsesRequest.model_validate({"model": "m", "input": "hi", "prism": {"deadline_seconds": 3}})
    messages = [_SYSTEM, _user("hi")]
    _, (own,) = await pair().prism.preprocess_chat(request, messages, None, "auto", {})
    assert [str(s.kind) for s in own[PLAN_KEY].segments] == ["system", "private"]
    assert own[PLAN_KEY].deadline_seconds == 3


async def test_tokenize_answers_as_stock_and_refuses_the_object(pair: Any) -> None:
    body = {"model": "m", "messages": [_user("hi")]}
    own, stock = [
        await renderer.preprocess_chat(TokenizeChatRequest.model_validate(body), body["messages"], None, "auto", {})
        for renderer in (pair().prism, pair().stock)
    ]
    assert own[1][0]["prompt_token_ids"] == stock[1][0]["prompt_token_ids"]
    assert PLAN_KEY not in own[1][0]
    with pytest.raises(RefusedRequest, match="no meaning on /tokenize"):
        await pair().prism.preprocess_chat(
            TokenizeChatRequest.model_validate({**body, "prism": {}}), body["messages"], None, "auto", {}
        )


async def test_a_renderer_that_vllm_has_built_can_be_given_segments(pair: Any) -> None:
    stock: OnlineRenderer = pair().stock
    own = PrismRenderer.from_stock(stock, lambda: (Reorder.DECLARED, 1))
    own.prepare()
    assert (await pair().input(own, {"messages": [_user("hi")]}))[PLAN_KEY].segments != ()


async def test_a_template_that_refuses_markers_costs_the_segments_and_nothing_else(pair: Any) -> None:
    picky = "{%- if messages[0]['content'] != 'hi' -%}{{- raise_exception('only hi') -}}{%- endif -%}hi"
    body = {"messages": [_user("hi")], "chat_template": picky}
    pair().prism.trust_request_chat_template = pair().stock.trust_request_chat_template = True
    plan, ids = await pair().plan(**body)
    assert plan.segments == ()
    assert ids


_CONTENT = st.text(alphabet=st.sampled_from("ab Z.,\n'1é中<|im_end|>{}\"\\"), max_size=20)
_MESSAGE = st.one_of(
    st.builds(lambda text: {"role": "assistant", "content": text}, _CONTENT),
    st.builds(lambda texts: _user(*texts), st.lists(_CONTENT, min_size=1, max_size=4)),
    st.builds(lambda text: {"role": "tool", "tool_call_id": "c", "content": text}, _CONTENT),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    template=st.sampled_from([None, "llama2", "llama3", "chatml", "thinking"]),
    system=st.booleans(),
    messages=st.lists(_MESSAGE, max_size=4),
    question=st.lists(_CONTENT, min_size=1, max_size=4),
    tools=st.sampled_from([None, _TOOLS]),
    reorder=st.booleans(),
)
async def test_any_conversation_has_stock_tokens_and_a_plan_that_holds(
    pair: Any, template: str | None, system: bool, messages: list[Any], question: list[str], tools: Any, reorder: bool
) -> None:
    conversation = [*([_SYSTEM] if system else []), *messages, _user(*question)]
    plan, ids = await pair(template).plan(messages=conversation, tools=tools, prism={"reorder": reorder})
    cursor = 0
    for segment in plan.segments:
        assert cursor <= segment.start < segment.end <= len(ids)
        cursor = segment.end
    for run, index in zip(plan.movable, plan.movable_segments, strict=True):
        assert run[0] <= plan.segments[index].start < plan.segments[index].end <= run[1]


async def test_the_plan_passes_through_vllms_input_processor(pair: Any, vllm_renderer: BaseRenderer) -> None:
    own = await pair().input(pair().prism, {"messages": [_user("hi")]})
    processor = InputProcessor(vllm_renderer.config, vllm_renderer)
    request = processor.process_inputs("r", own, SamplingParams(max_tokens=1), supported_tasks=("generate",))
    assert request.prompt_token_ids == own["prompt_token_ids"]
    assert own[PLAN_KEY].segments != ()
