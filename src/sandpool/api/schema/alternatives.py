"""Validation of allOf, anyOf, oneOf and not. These schemas never change the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandpool.api import causes
from sandpool.api.schema.compiler import Step
from sandpool.api.schema.findings import Findings
from sandpool.api.schema.shape import MISSING, Shape

# Adds the findings of a value.
AlternativesCheck = Callable[[Any, Findings], None]


def compile_alternatives(shape: Shape, compile_shape: Callable[[Shape], Step]) -> AlternativesCheck:
    """Compile the check of a shape's combined schemas. ``compile_shape`` compiles each of them."""
    all_of, any_of, one_of = (
        [_validator(compile_shape(each)) for each in group] for group in (shape.all_of, shape.any_of, shape.one_of)
    )
    excluded = _validator(compile_shape(shape.not_)) if shape.not_ is not None else None

    def check_alternatives(value: Any, found: Findings) -> None:
        if any_of:
            _at_least_one(any_of, value, found)
        if one_of:
            _exactly_one(one_of, value, found)
        if all_of:
            _all(all_of, value, found)
        if excluded is not None and not len(excluded(value)):
            _add_invalid(found, "must not validate the schema (not)")

    return check_alternatives


_Validator = Callable[[Any], Findings]


def _validator(check: Step) -> _Validator:
    def validate(value: Any) -> Findings:
        found = Findings()
        check(value, MISSING, found)
        return found

    return validate


def _at_least_one(validators: list[_Validator], value: Any, found: Findings) -> None:
    failures = []
    for validate in validators:
        failure = validate(value)
        if not len(failure):
            return
        failures.append(failure)
    _add_invalid(found, "must validate at least one schema (anyOf)")
    found += failures[0]


def _exactly_one(validators: list[_Validator], value: Any, found: Findings) -> None:
    failures = [failure for validate in validators if len(failure := validate(value))]
    valid = len(validators) - len(failures)
    if valid == 1:
        return
    described = f"Found {valid} valid alternatives" if valid else "Found none valid"
    _add_invalid(found, f"must validate one and only one schema (oneOf). {described}")
    if not valid:
        found += failures[0]


def _all(validators: list[_Validator], value: Any, found: Findings) -> None:
    failures = [failure for validate in validators if len(failure := validate(value))]
    if not failures:
        return
    for failure in failures:
        found += failure
    _add_invalid(
        found,
        "must validate all the schemas (allOf)" + (". None validated" if len(failures) == len(validators) else ""),
    )


def _add_invalid(found: Findings, text: str) -> None:
    # These causes have no field; the path is only in the message.
    found.add(lambda path: causes.invalid("<nil>", "", f"{causes.quoted(path)} {text}"))
