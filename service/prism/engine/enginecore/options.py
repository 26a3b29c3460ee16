"""What the launcher told this EngineCore, out of vLLM's `additional_config`."""

from __future__ import annotations

from typing import Any

import msgspec

from prism.engine.wire import CONFIG_KEY, EngineCoreOptions
from prism.errors import UnsupportedArgument


def options_of(additional_config: object) -> EngineCoreOptions:
    """The options; those of a PRISM that sends and watches nothing where there are none.

    Raises:
        UnsupportedArgument: what stands there are no options.
    """
    data: Any = additional_config.get(CONFIG_KEY, {}) if isinstance(additional_config, dict) else {}
    try:
        return msgspec.convert(data, EngineCoreOptions)
    except msgspec.ValidationError as error:
        raise UnsupportedArgument(f"additional_config.{CONFIG_KEY} is not PRISM's: {error}") from error
