"""Selectors: what matches what, and kube-apiserver's words for what is no selector."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.kube.errors import BadRequest
from sandpool.kube.selectors import FieldSelector, LabelSelector

VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    "(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
OPERATORS = "in, notin, =, ==, !=, gt, lt"


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ("", {"a": "b"}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "b"}, True),
        ("a = b , c == d", {"a": "b", "c": "d"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a!=b", {"a": "c"}, True),
        ("a!=b", {}, True),
        ("a!=b", {"a": "b"}, False),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("! a", {"a": "b"}, False),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,c)", {"a": "d"}, False),
        ("a in (b,c)", {}, False),
        ("a in ()", {"a": ""}, True),
        ("a in (,b)", {"a": ""}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a in (b,,c)", {"a": ""}, True),
        ("a notin (b,c)", {"a": "d"}, True),
        ("a notin (b,c)", {}, True),
        ("a notin (b,c)", {"a": "b"}, False),
        ("a>1", {"a": "2"}, True),
        ("a>1", {"a": "1"}, False),
        ("a<1", {"a": "-5"}, True),
        ("a<1", {"a": "x"}, False),
        ("a<1", {"a": "9223372036854775808"}, False),
        ("a<1", {}, False),
        ("in", {"in": "x"}, True),
        ("notin notin (in,notin)", {"notin": "in"}, False),
        ("x.y/z=1,!q", {"x.y/z": "1"}, True),
        ("x.y/z=1,!q", {"x.y/z": "1", "q": ""}, False),
        ("a=b\n", {"a": "b"}, True),
    ],
)
def test_label_selector_matches_labels(selector: str, labels: dict[str, str], expected: bool) -> None:
    assert LabelSelector.parse(selector).matches(labels) is expected


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("a b", f"unable to parse requirement: found 'b', expected: {OPERATORS}"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("a in", "unable to parse requirement: found '' expected: '('"),
        ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("a===", "unable to parse requirement: found '=', expected: identifier"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a=b,,c", "found ',', expected: identifier after ','"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("!!a", "unable to parse requirement: found '!', expected: identifier"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("a!", f"unable to parse requirement: found '!', expected: {OPERATORS}"),
        ("a notin (x y)", "unable to parse requirement: found 'y', expected: ',' or ')'"),
        (
            "a>x",
            'unable to parse requirement: values[0]: Invalid value: "x": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        (
            "a>9223372036854775808",
            'unable to parse requirement: values[0]: Invalid value: "9223372036854775808": '
            "for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        ("a=%", f'unable to parse requirement: values[0][a]: Invalid value: "%": {VALUE_RULE}'),
        (
            "a in (-,_)",
            f'unable to parse requirement: [values[0][a]: Invalid value: "-": {VALUE_RULE}, '
            f'values[1][a]: Invalid value: "_": {VALUE_RULE}]',
        ),
        ("-a", f'unable to parse requirement: <nil>: Invalid value: "-a": name part {NAME_RULE}'),
        ("/a", 'unable to parse requirement: <nil>: Invalid value: "/a": prefix part must be non-empty'),
        (
            "a/",
            'unable to parse requirement: <nil>: Invalid value: "a/": name part must be non-empty; '
            f"name part {NAME_RULE}",
        ),
        (
            "x" * 64,
            f'unable to parse requirement: <nil>: Invalid value: "{"x" * 64}": name part must be no more than 63 bytes',
        ),
        ("a\0b", f"unable to parse requirement: found 'b', expected: {OPERATORS}"),
    ],
)
def test_invalid_label_selector_is_rejected(selector: str, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        LabelSelector.parse(selector)
    assert raised.value.message == message


@given(st.text("ab-=!(),>< in", max_size=12))
def test_any_text_is_a_selector_or_a_bad_request(text: str) -> None:
    try:
        selector = LabelSelector.parse(text)
    except BadRequest:
        return
    assert selector.matches({"a": "b"}) in (True, False)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ({}, {"a": "b"}, True),
        ({"matchLabels": {"a": "b"}}, {"a": "b", "c": "d"}, True),
        ({"matchLabels": {"a": "b"}}, None, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}, {"a": "c"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
        ({"matchLabels": None, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
    ],
)
def test_label_selector_of_a_spec_matches_labels(selector: Any, labels: Any, expected: bool) -> None:
    parsed = LabelSelector.from_object(selector)
    assert parsed is not None
    assert parsed.matches(labels) is expected


def test_missing_label_selector_differs_from_an_empty_one() -> None:
    assert LabelSelector.from_object(None) is None
    empty = LabelSelector.from_object({})
    assert empty is not None
    assert empty.empty


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ({"key": "a", "operator": "Near"}, '"Near" is not a valid label selector operator'),
        (
            {"key": "a", "operator": "In"},
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            {"key": "a", "operator": "Exists", "values": ["b"]},
            'values: Invalid value: ["b"]: values set must be empty for exists and does not exist',
        ),
        ({"key": "-", "operator": "Exists"}, f'key: Invalid value: "-": name part {NAME_RULE}'),
    ],
)
def test_invalid_match_expression_is_rejected(expression: Any, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        LabelSelector.from_object({"matchExpressions": [expression]})
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("selector", "fields", "expected"),
    [
        ("", {}, True),
        (",", {}, True),
        ("metadata.name=a", {"metadata.name": "a"}, True),
        ("metadata.name==a,", {"metadata.name": "a"}, True),
        ("metadata.name=a", {"metadata.name": "b"}, False),
        ("metadata.name!=a", {"metadata.name": "b"}, True),
        ("status.podIP!=", {"status.podIP": ""}, False),
        ("status.podIP!=", {"status.podIP": "10.0.0.1"}, True),
        ("status.podIP=", {}, True),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        (r"a=x\,y\=z\\", {"a": "x,y=z\\"}, True),
        (r"a=x\\,b=c", {"a": "x\\", "b": "c"}, True),
    ],
)
def test_field_selector_matches_fields(selector: str, fields: dict[str, str], expected: bool) -> None:
    assert FieldSelector.parse(selector).matches(fields) is expected


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
        ("a=b\\x", "invalid field selector: invalid escape sequence: \\x"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
    ],
)
def test_invalid_field_selector_is_rejected(selector: str, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        FieldSelector.parse(selector)
    assert raised.value.message == message


def test_field_selector_names_its_fields() -> None:
    selector = FieldSelector.parse("metadata.name=a,spec.nodeName!=n")
    assert selector.names == {"metadata.name", "spec.nodeName"}
    assert selector.requires_exact("metadata.name") == "a"
    assert selector.requires_exact("spec.nodeName") is None
    assert not selector.empty
    assert FieldSelector.parse("").empty
