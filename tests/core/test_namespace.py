"""Salts and adapters never meet (case A3, promise 4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prism.core.namespace import AdapterLoads, namespace, salt_of

SALTS = st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["prism:adapter:a:1", "salt:x", "a:1:salt:x"]))
ADAPTERS = st.one_of(st.none(), st.text(min_size=1, max_size=8), st.sampled_from(["a", "a:1", "a:1:salt", "a%3A1"]))
TENANTS = st.tuples(SALTS, ADAPTERS, st.integers(0, 9))


def same_tenant(one: tuple[str | None, str | None, int], other: tuple[str | None, str | None, int]) -> bool:
    loads_count = one[1] is not None
    return (one[0] or "", one[1]) == (other[0] or "", other[1]) and (not loads_count or one[2] == other[2])


def test_a_base_model_without_a_salt_has_none() -> None:
    assert namespace(None) == namespace("") == ""


def test_the_documented_forms() -> None:
    assert namespace("s") == "prism:salt:s"
    assert namespace("", "a", 3) == "prism:adapter:a:3"
    assert namespace("s", "a", 3) == "prism:adapter:a:3:salt:s"


def test_a_new_load_of_an_adapter_is_a_new_namespace() -> None:
    assert namespace(None, "a", 1) != namespace(None, "a", 2)


@given(TENANTS, TENANTS)
def test_namespaces_are_equal_only_for_one_tenant(
    one: tuple[str | None, str | None, int], other: tuple[str | None, str | None, int]
) -> None:
    assert (namespace(*one) == namespace(*other)) == same_tenant(one, other)


@given(TENANTS)
def test_the_salt_is_found_again_whatever_the_adapter(tenant: tuple[str | None, str | None, int]) -> None:
    assert salt_of(namespace(*tenant)) == (tenant[0] or "")


def test_each_load_of_an_adapter_has_a_number_of_its_own() -> None:
    loads = AdapterLoads()
    numbers = [loads.number("a"), loads.number("a"), loads.number("b")]
    loads.loaded("a")
    numbers.append(loads.number("a"))
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 3
