"""The operator's command line."""

from __future__ import annotations

import pytest

from prism_operator.arguments import parse_arguments


def test_the_pod_says_who_and_where_it_is() -> None:
    arguments = parse_arguments([], {"POD_NAMESPACE": "prism-system", "POD_NAME": "op-0"})
    assert (arguments.namespace, arguments.identity) == ("prism-system", "op-0")


def test_lists_are_written_with_commas() -> None:
    flags = ["--namespace=p", "--watch-namespaces=a, b,a", "--serving-ports=8080,9081", "--operator-labels=x=1,y="]
    arguments = parse_arguments(flags, {})
    assert arguments.watch_namespaces == ("a", "b")
    assert arguments.serving_ports == (8080, 9081)
    assert arguments.operator_labels == {"x": "1", "y": ""}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--namespace is needed"),
        (["--namespace=p", "--serving-ports=8080,8090"], "only the operator may reach"),
        (["--namespace=p", "--ask-seconds=0"], "above 0"),
        (["--namespace=p", "--operator-labels=x"], "key=value"),
        (["--namespace=p", "--admin-port=70000"], "must be a port"),
    ],
)
def test_what_cannot_be_used_ends_with_a_sentence(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(flags, {})
    assert said in capsys.readouterr().err
