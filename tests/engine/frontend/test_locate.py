"""Pieces in prompts, with templates as small functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prism.engine.frontend.locate import Locator, Lru, Source, mark_request

Template = Callable[[list[Any], Any], str]


def _plain(messages: list[Any], documents: Any) -> str:
    return "".join(f"<{m['role']}>{m['content']}</>" for m in messages) + "<assistant>"


def _forgetful(messages: list[Any], documents: Any) -> str:
    """Strips everything and drops what an assistant thought."""
    return "".join(f"<{m['role']}>{m['content'].split('</think>')[-1].strip()}</>" for m in messages) + "<assistant>"


def _find(template: Template, messages: list[Any], tools: Any = (), documents: Any = None) -> list[tuple[str, str]]:
    text = template(messages, documents)
    marked = mark_request(messages, documents)
    located = Locator().locate(text, marked, tools, (), lambda: template(marked.messages, marked.documents))
    return [(p.piece.source.name + str(p.piece.index), text[p.start : p.end]) for p in located.placed]


def _talk(*contents: str) -> list[Any]:
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def test_contents_are_found_though_they_look_like_glue() -> None:
    found = _find(_plain, _talk("</><user>", "<assistant>", "</>"))
    assert found == [("MESSAGE0", "</><user>"), ("MESSAGE1", "<assistant>"), ("MESSAGE2", "</>")]


def test_a_stripped_content_is_found_without_its_blanks() -> None:
    assert _find(_forgetful, _talk("  a \n")) == [("MESSAGE0", "a")]


def test_what_a_template_left_of_a_content_is_bounded_by_its_neighbours() -> None:
    found = _find(_forgetful, _talk("question", "<think>why</think>\nbecause", "and then?"))
    assert found[1] == ("MESSAGE1", "because")


def test_several_changed_contents_are_bounded_between_unmistakable_ones() -> None:
    talk = _talk("first question", "<think>x</think>one", "second question", "<think>y</think>two", "third")
    assert [text for _, text in _find(_forgetful, talk)] == ["first question", "one", "second question", "two", "third"]


def test_a_content_that_the_template_drops_is_not_found() -> None:
    found = _find(lambda m, d: f"<user>{m[-1]['content']}", _talk("gone", "gone too", "here"))
    assert found == [("MESSAGE2", "here")]


def test_unexpected_glue_leaves_long_contents_found_and_others_not() -> None:
    def moody(messages: list[Any], documents: Any) -> str:
        return "".join(f"<{len(m['content']) % 7}>{m['content']}" for m in messages) + "."

    long = "a sentence long enough to be unmistakable"
    assert ("MESSAGE1", long) in _find(moody, _talk("hm", long, "no"))


def test_tools_are_found_in_glue_and_not_in_a_message_that_quotes_them() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    written = '{"type": "function", "function": {"name": "f", "parameters": {}}}'
    text: Template = lambda m, d: f"{m[0]['content']}|{written}|{m[1]['content']}"  # noqa: E731
    found = _find(text, _talk(written, "q"), tools=[tool])
    assert found == [("MESSAGE0", written), ("TOOL0", written), ("MESSAGE1", "q")]


def test_the_name_of_the_first_call_bounds_a_message_without_content() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    messages = [*_talk("q"), {"role": "assistant", "content": None, "tool_calls": calls}]
    found = _find(lambda m, d: f"{m[0]['content']}|{m[1]['tool_calls'][0]['function']['name']}", messages)
    assert found == [("MESSAGE0", "q"), ("TOOL_CALL1", "look")]


def test_marking_leaves_the_request_as_it_was() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]
    marked = mark_request(messages, [{"title": "t"}])
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]
    assert [piece.text for piece in marked.pieces] == ["a", "b", "t"]


def test_documents_that_no_template_text_shows_are_told() -> None:
    marked = mark_request(_talk("q"), [{"text": "a"}, {"body": "b"}])
    assert marked.documents is not None
    rendered = marked.messages[0]["content"] + marked.documents[0]["text"]
    located = Locator().locate("qa", marked, (), (), lambda: rendered)
    assert located.dropped_documents == (1,)


def test_a_shape_is_rendered_once() -> None:
    rendered = []
    locator = Locator()
    for content in ("one", "two", "three"):
        marked = mark_request(_talk(content), None)

        def render(messages: list[Any] = marked.messages) -> str:
            rendered.append(1)
            return _plain(messages, None)

        located = locator.locate(_plain(_talk(content), None), marked, (), (), render)
        assert [p.piece.source for p in located.placed] == [Source.MESSAGE]
    assert len(rendered) == 1


def test_a_shape_that_can_not_be_rendered_has_no_pieces_and_is_not_tried_again() -> None:
    tried = []
    locator = Locator()
    for _ in range(2):
        located = locator.locate("text", mark_request(_talk("text"), None), (), (), lambda: tried.append(1))
        assert located.placed == ()
    assert len(tried) == 1


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    kept: Lru[str, int] = Lru(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.find("a") == 1
    kept.keep("c", 3)
    assert list(kept) == ["a", "c"]


@given(contents=st.lists(st.text(alphabet="<>/usera |\n", max_size=12), min_size=1, max_size=6))
def test_every_content_that_is_not_blank_is_found_as_it_is(contents: list[str]) -> None:
    found = _find(_plain, _talk(*contents))
    assert [text for _, text in found] == [content for content in contents if content.strip()]


@given(contents=st.lists(st.text(alphabet="<>/usera |\n", max_size=12), min_size=1, max_size=6))
def test_bounds_ascend_and_stay_inside_whatever_the_template_does(contents: list[str]) -> None:
    text = _forgetful(_talk(*contents), None)
    marked = mark_request(_talk(*contents), None)
    located = Locator().locate(text, marked, (), (), lambda: _forgetful(marked.messages, None))
    cursor = 0
    for placed in located.placed:
        assert cursor <= placed.start < placed.end <= len(text)
        cursor = placed.end
