"""Every name that PRISM's spans use: its own under `prism.`, and those of OpenTelemetry's semantic conventions.

The conventions' generative-AI names are still moving, and the package that carries them keeps them under a private
path; they stand here as text, and a test compares them with the installed package.
"""

from typing import Final

# Spans
ADMISSION_WAIT: Final = "prism.admission_wait"
RENDER: Final = "prism.render"
PREFILL: Final = "prism.prefill"
FIRST_TOKEN: Final = "prism.first_token"
DECODE: Final = "prism.decode"
PREEMPTED: Final = "prism.preempted"
SEQUENCE: Final = "prism.sequence"

# Events
QUEUED: Final = "prism.queued"
ADMITTED: Final = "prism.admitted"
REORDERED: Final = "prism.reordered"
CHUNK: Final = "prism.chunk"

# Attributes: the request
REQUEST_ID: Final = "prism.request_id"
OUTCOME: Final = "prism.outcome"
OUTCOME_REASON: Final = "prism.outcome.reason"
INCOMPLETE: Final = "prism.incomplete"
TTFT: Final = "prism.ttft"
TTFT_END: Final = "prism.ttft.end"
HELD_BACK_TOKENS: Final = "prism.held_back_tokens"
SETTINGS_GENERATION: Final = "prism.settings.generation"
RENDER_GENERATION: Final = "prism.settings.render_generation"

# Attributes: what the scheduler decided
LANE: Final = "prism.lane"
BUCKET: Final = "prism.bucket"
QUEUE_DEPTH: Final = "prism.queue_depth"
WAIT_REASON: Final = "prism.wait_reason"
OVERTAKEN: Final = "prism.overtaken"
CACHED_TOKENS: Final = "prism.cached_tokens"
COMPUTED_TOKENS: Final = "prism.computed_tokens"
PROMPT_TOKENS: Final = "prism.prompt_tokens"
SEGMENTS_HIT: Final = "prism.segments_hit"
SEGMENTS: Final = "prism.segments"
WAS_REORDERED: Final = "prism.reordered"
REORDER_REFUSED: Final = "prism.reorder_refused"
ORDER: Final = "prism.order"
PREEMPTIONS: Final = "prism.preemptions"
ENGINE_REQUEST: Final = "prism.engine_request"
ENGINE_END: Final = "prism.engine_end"
CHUNK_START: Final = "prism.chunk.start"
CHUNK_END: Final = "prism.chunk.end"

# Attributes: OpenTelemetry's
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
