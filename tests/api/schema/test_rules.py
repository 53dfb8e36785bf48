from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from sandpool.api.causes import Cause
from sandpool.api.schema import cel
from sandpool.api.schema.admit import compile_admission
from sandpool.api.schema.rules import RulesUnsupported, compile_rules, immutable_field
from sandpool.api.schema.shape import from_openapi

with_library = pytest.mark.skipif(find_spec("cel_expr_python") is None, reason="needs the CEL library: sandpool[cel]")


def rules(schema: dict[str, Any], *stated: str | dict[str, Any]) -> Any:
    entries = [{"rule": each} if isinstance(each, str) else each for each in stated]
    spec = {**schema, "x-kubernetes-validations": entries}
    found = compile_rules(from_openapi({"type": "object", "properties": {"spec": spec}}))
    assert found is not None

    def find(new: Any, old: Any = None) -> list[Cause]:
        return found({"spec": new}, None if old is None else {"spec": old})

    return find


TEXT = {"type": "string"}
SIZES = {"type": "object", "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}}}


def test_schema_without_rules_compiles_to_none() -> None:
    assert compile_rules(from_openapi({"type": "object", "properties": {"a": TEXT}})) is None


def test_immutable_field_rule_is_enforced() -> None:
    find = rules({"type": "object"}, {"rule": immutable_field("a"), "message": "a is immutable"})
    broken = [Cause("spec", "FieldValueInvalid", "Invalid value: a is immutable")]
    assert find({"a": [1]}) == [], "there is nothing to compare with on create"
    assert find({"a": [1], "b": 1}, {"a": [1]}) == []
    assert find({"b": 1}, {"b": 2}) == []
    assert find({"a": [2]}, {"a": [1]}) == broken
    assert find({"a": []}, {}) == broken
    assert find({}, {"a": []}) == broken


def test_immutable_value_rule_is_enforced() -> None:
    find = rules(TEXT, "self == oldSelf")
    assert find("a") == []
    assert find("a", "a") == []
    assert find("b", "a") == [Cause("spec", "FieldValueInvalid", 'Invalid value: "b": failed rule: self == oldSelf')]


def test_items_of_a_map_list_are_correlated_by_their_keys() -> None:
    schema = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": {
            "type": "object",
            "properties": {"k": TEXT, "v": {**TEXT, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}},
        },
    }
    found = compile_rules(from_openapi({"type": "object", "properties": {"spec": schema}}))
    assert found is not None
    old = {"spec": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]}
    assert found({"spec": [{"k": "b", "v": "2"}, {"k": "c", "v": "3"}]}, old) == []
    assert [cause.field for cause in found({"spec": [{"k": "b", "v": "1"}]}, old)] == ["spec[0].v"]


def test_rules_run_only_for_objects_that_match_the_schema() -> None:
    spec = {
        "type": "object",
        "required": ["b"],
        "properties": {"a": TEXT, "b": TEXT},
        "x-kubernetes-validations": [{"rule": immutable_field("a"), "message": "a is immutable"}],
    }
    admit = compile_admission(from_openapi({"type": "object", "properties": {"spec": spec}}))
    old = {"spec": {"a": "1", "b": "x"}}
    assert [str(cause) for cause in admit({"spec": {"a": "2", "b": "x"}}, old).causes] == [
        "spec: Invalid value: a is immutable"
    ]
    assert [str(cause) for cause in admit({"spec": {"a": "2"}}, old).causes] == [
        "spec.b: Required value",
        "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; "
        "correct the existing errors to complete validation",
    ]


def test_other_rules_are_rejected_without_the_cel_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(cel, "import_module", missing)
    cel._environment.cache_clear()
    try:
        with pytest.raises(RulesUnsupported, match=r"install sandpool\[cel\]"):
            rules(SIZES, "self.min <= self.max")
    finally:
        cel._environment.cache_clear()


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("plain", "plain"),
        ("foo-bar", "foo__dash__bar"),
        ("a.b/c", "a__dot__b__slash__c"),
        ("a__b", "a__underscores__b"),
        ("namespace", "__namespace__"),
    ],
)
def test_names_are_escaped_as_in_cel(name: str, escaped: str) -> None:
    assert cel.escape(name) == escaped


@with_library
class TestWithTheLibrary:
    def test_rule_is_evaluated_with_its_message(self) -> None:
        find = rules(SIZES, {"rule": "self.min <= self.max", "message": " min must not be above max "})
        assert find({"min": 1, "max": 2}) == []
        assert find({"min": 3, "max": 2}) == [
            Cause("spec", "FieldValueInvalid", "Invalid value: min must not be above max")
        ]

    def test_unchanged_value_is_not_checked_again(self) -> None:
        find = rules(SIZES, "self.min <= self.max")
        assert find({"min": 3, "max": 2}, {"min": 3, "max": 2}) == []
        assert len(find({"min": 4, "max": 2}, {"min": 3, "max": 2})) == 1

    def test_transition_rules_are_skipped_without_an_old_value(self) -> None:
        find = rules({"type": "integer"}, "self >= oldSelf")
        assert find(1) == []
        assert find(2, 1) == []
        assert find(1, 2) == [Cause("spec", "FieldValueInvalid", "Invalid value: 1: failed rule: self >= oldSelf")]

    def test_optional_old_self_is_supported(self) -> None:
        rule = {"rule": "oldSelf.hasValue() || self == 1", "optionalOldSelf": True, "message": "starts at 1"}
        find = rules({"type": "integer"}, rule)
        assert find(1) == []
        assert find(5, 1) == []
        assert [cause.message for cause in find(5)] == ["Invalid value: 5: starts at 1"]

    def test_message_expression_is_evaluated(self) -> None:
        rule = {"rule": "self.min < 3", "messageExpression": "'min is ' + string(self.min)", "message": "default"}
        assert [cause.message for cause in rules(SIZES, rule)({"min": 3})] == ["Invalid value: min is 3"]
        rule = {"rule": "self.min < 3", "messageExpression": "string(self.gone)", "message": "default"}
        assert [cause.message for cause in rules(SIZES, rule)({"min": 3})] == ["Invalid value: default"]

    def test_reason_and_field_path_are_reported(self) -> None:
        rule = {"rule": "false", "message": "m", "reason": "FieldValueForbidden", "fieldPath": ".min"}
        assert rules(SIZES, rule)({"min": 3}) == [Cause("spec.min", "FieldValueForbidden", "Forbidden: m")]
        rule = {"rule": "false", "message": "m", "reason": "FieldValueRequired"}
        assert rules(SIZES, rule)({"min": 3}) == [Cause("spec", "FieldValueRequired", "Required value: m")]
        rule = {"rule": "false", "message": "m", "reason": "FieldValueDuplicate"}
        assert rules(TEXT, rule)("a") == [Cause("spec", "FieldValueDuplicate", 'Duplicate value: "a"')]

    def test_failing_evaluation_is_reported(self) -> None:
        (cause,) = rules(SIZES, "self.gone == 1")({"min": 3})
        assert cause.message == 'Invalid value: "object": no such key: gone evaluating rule: self.gone == 1'

    def test_times_and_escaped_names_are_supported(self) -> None:
        schema = {
            "type": "object",
            "properties": {
                "shut-down": {"type": "string", "format": "date-time"},
                "l": {"type": "array", "items": TEXT},
            },
        }
        find = rules(
            schema, "timestamp(self.shut__dash__down) > timestamp('2026-01-01T00:00:00Z')", "self.l.all(x, x != '')"
        )
        assert find({"shut-down": "2027-01-01T00:00:00Z", "l": ["a"]}) == []
        assert len(find({"shut-down": "2025-01-01T00:00:00Z", "l": ["a", ""]})) == 2

    def test_invalid_rule_is_rejected(self) -> None:
        with pytest.raises(RulesUnsupported, match="is not supported"):
            rules(SIZES, "self.min <=")
