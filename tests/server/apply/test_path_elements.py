from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.server.apply import path_elements

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)


def test_elements_have_their_wire_form() -> None:
    assert path_elements.field("spec") == "f:spec"
    assert path_elements.index(3) == "i:3"
    assert path_elements.value("tcp") == 'v:"tcp"'
    assert path_elements.value(80) == "v:80"
    assert path_elements.value(True) == "v:true"
    assert path_elements.key(("protocol", "port"), "TCP", 80) == 'k:{"port":80,"protocol":"TCP"}'
    assert path_elements.key(("name",), "<a>") == 'k:{"name":"\\u003ca\\u003e"}'


def test_equal_values_of_different_types_are_different_elements() -> None:
    assert path_elements.value(1) == path_elements.value(1.0) == "v:1"
    assert path_elements.value(True) != path_elements.value(1)
    assert path_elements.key(("a",), 1) != path_elements.key(("a",), True)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("f:a:b", "f:a:b"),
        ("f:", "f:"),
        ('v: "a"', 'v:"a"'),
        ("v:1.0", "v:1"),
        ('k:{"b": 2, "a": 1.0}', 'k:{"a":1,"b":2}'),
        ("i:007", "i:7"),
        ("x:future", None),
    ],
)
def test_element_is_read_in_canonical_form(text: str, spelling: str | None) -> None:
    assert path_elements.canonical(text) == spelling


@pytest.mark.parametrize("text", ["", "f", "spec", "v:", "v:{", "k:[]", "k:", "i:x"])
def test_invalid_element_is_rejected(text: str) -> None:
    with pytest.raises(path_elements.InvalidPathElement):
        path_elements.canonical(text)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), SCALARS, min_size=1))
def test_canonical_form_is_stable(keys: dict[str, Any]) -> None:
    spelling = path_elements.keys(keys)
    assert path_elements.canonical(spelling) == spelling


def test_elements_are_ordered_by_kind_and_value() -> None:
    """Fields, keys, values, positions; numbers by their size and before text, which is before booleans."""
    expected = [
        "f:A",
        "f:a",
        "f:aa",
        'k:{"name":"a"}',
        'k:{"name":"b"}',
        'k:{"port":80}',
        'k:{"port":443}',
        'k:{"port":443,"protocol":"TCP"}',
        'k:{"port":443,"protocol":"UDP"}',
        'k:{"port":"a"}',
        "v:2",
        "v:10",
        'v:"1"',
        'v:"a"',
        "v:false",
        "v:true",
        "i:2",
        "i:10",
    ]
    assert sorted(set(expected), key=path_elements.sort_key) == expected


def test_elements_are_printed_as_in_conflicts() -> None:
    assert path_elements.text("f:spec") == ".spec"
    assert path_elements.text('k:{"name":"a","port":80}') == '[name="a",port=80]'
    assert path_elements.text('k:{"on":true,"x":null}') == "[on=true,x=null]"
    assert path_elements.text('v:"a\\"b"') == '[="a\\"b"]'
    assert path_elements.text("v:1.5") == "[=1.5]"
    assert path_elements.text("i:0") == "[0]"
