"""KServe's command line, joined to vLLM's parser.

Its flags are added to the one parser of `prism serve`, and the values go back to it afterwards.
"""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace

from kserve import model_server

_SAME_AS_VLLM = {"http_port": "port"}
# There is nothing to serve over KServe's gRPC protocol: it has no chat and no completions.
_OTHER_DEFAULTS = {"enable_grpc": False, "model_name": None}


def kserve_actions() -> list[Action]:
    """The flags of KServe's model server, without its `--help`."""
    parser: ArgumentParser = model_server.parser
    return [action for action in parser._actions if action.dest != "help"]


def add_kserve_flags(parser: ArgumentParser) -> None:
    """Add KServe's flags that vLLM's parser has not (its TLS files are spelled the same in both)."""
    group = parser.add_argument_group("KServe", "Arguments of KServe's model server.")
    taken = set(parser._option_string_actions)
    for action in kserve_actions():
        flag = action.option_strings[0].replace("_", "-")
        if flag in taken:
            continue
        dest = _SAME_AS_VLLM.get(action.dest, action.dest)
        default = _OTHER_DEFAULTS.get(action.dest, action.default)
        if action.nargs == 0:
            group.add_argument(flag, dest=dest, action="store_true", default=default, help=action.help)
        else:
            group.add_argument(
                flag, dest=dest, type=action.type or str, choices=action.choices, default=default, help=action.help
            )


def hand_back(args: Namespace) -> None:
    """Let KServe's own module-level namespace hold what was parsed: parts of it read that one."""
    for action in kserve_actions():
        value = getattr(args, _SAME_AS_VLLM.get(action.dest, action.dest), None)
        if value is not None:
            setattr(model_server.args, action.dest, value)
