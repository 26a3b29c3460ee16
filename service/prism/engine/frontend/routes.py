"""Which of vLLM's routes do inference, and how each is followed."""

from __future__ import annotations

from dataclasses import dataclass

from prism.engine.frontend.compatibility import WITH_SEGMENTS
from prism.engine.frontend.sse import (
    ContentOf,
    ErrorEvents,
    chat_content,
    completion_content,
    error_events,
    generate_content,
    invocation_content,
    messages_content,
    messages_error_events,
    responses_content,
    responses_error_events,
)


@dataclass(frozen=True)
class InferenceRoute:
    """A route whose requests get a timeline.

    Attributes:
        operation: `gen_ai.operation.name`.
        content_of: tells which event of its stream carries content; None for a route that does not stream.
        usage_chunk: whether its stream has a usage chunk, where the client asked for it.
        error_events: how a begun stream says that it can't go on.
    """

    operation: str
    content_of: ContentOf | None = None
    usage_chunk: bool = False
    error_events: ErrorEvents = error_events


INFERENCE: dict[str, InferenceRoute] = {
    "/v1/chat/completions": InferenceRoute("chat", chat_content, usage_chunk=True),
    "/v1/completions": InferenceRoute("text_completion", completion_content, usage_chunk=True),
    "/v1/responses": InferenceRoute("chat", responses_content, error_events=responses_error_events),
    "/v1/messages": InferenceRoute("chat", messages_content, error_events=messages_error_events),
    "/v1/chat/completions/batch": InferenceRoute("chat"),
    "/inference/v1/generate": InferenceRoute("text_completion", generate_content),
    "/invocations": InferenceRoute("chat", invocation_content, usage_chunk=True),
    "/generative_scoring": InferenceRoute("text_completion"),
    "/v1/embeddings": InferenceRoute("embeddings"),
    "/v2/embed": InferenceRoute("embeddings"),
    "/pooling": InferenceRoute("embeddings"),
    "/classify": InferenceRoute("embeddings"),
    "/score": InferenceRoute("embeddings"),
    "/v1/score": InferenceRoute("embeddings"),
    "/rerank": InferenceRoute("embeddings"),
    "/v1/rerank": InferenceRoute("embeddings"),
    "/v2/rerank": InferenceRoute("embeddings"),
    "/v1/audio/transcriptions": InferenceRoute("transcription", chat_content),
    "/v1/audio/translations": InferenceRoute("transcription", chat_content),
}


DROPS_UNKNOWN_KEYS = "/v1/messages"
"""Takes the `prism` object, but vLLM's request type drops it before rendering."""


def takes_prism_object(path: str) -> bool:
    """Whether a request to this route may hold the `prism` object."""
    return path in WITH_SEGMENTS
