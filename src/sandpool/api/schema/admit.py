"""Admission by schema: prune, default and validate an object in one pass.

A shape is compiled once into closures, one per node. A closure takes a value, the value stored there before, and the
findings; it returns the value to store. Four things make it fast:

* Nothing is copied until something changes (copy-on-write), so an object that needs no change is returned itself.
* A value that *is* the old value (the same Python object) was admitted before and is not checked again. A patch shares
  every subtree it does not touch, so the cost of admission depends on the change, not on the object.
* The spec of a new object counts as admitted if one with the same JSON was admitted before (``_AdmittedSpecs``), so the
  specs of the thousands of objects of one template are checked once.
* Valid values take the short path: the loop of a container recognises strings and booleans by one type test, and paths
  and messages are built only for errors (see ``findings`` and ``scalars``).

Errors, their order and their words are kube-apiserver's. Custom resources and built-in kinds fail differently there,
and here too: a custom resource is validated by its schema, a built-in one is decoded into its Go type (see ``decode``).
"""

from __future__ import annotations

from typing import Any, Protocol

from sandpool.api import causes
from sandpool.api.causes import Cause
from sandpool.api.json_cache import UNCHANGED, JsonCache, text_of
from sandpool.api.resource import Object
from sandpool.api.schema.checks import Check, Checks
from sandpool.api.schema.decode import Decoding
from sandpool.api.schema.defaults import compile_defaults as compile_defaults
from sandpool.api.schema.findings import LIST_TYPE, Findings, TooDeep
from sandpool.api.schema.findings import Admitted as Admitted
from sandpool.api.schema.findings import Undecodable as Undecodable
from sandpool.api.schema.govalues import Mismatch
from sandpool.api.schema.rules import compile_rules
from sandpool.api.schema.shape import MISSING, Shape

# Errors that prevent the evaluation of rules, because rules rely on structurally valid values.
_BLOCKING = {causes.NOT_SUPPORTED, causes.REQUIRED, causes.TOO_LONG, causes.TOO_MANY, causes.WRONG_TYPE}
_NOT_CHECKED = Cause(
    "<nil>",
    causes.INVALID,
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
)


class Admission(Protocol):
    """Admits objects of one kind. ``new`` replaces the stored object ``old``; shared subtrees count as admitted.
    Raises Undecodable for a bad request, in contrast to an invalid object."""

    def __call__(self, new: Object, old: Object | None = None) -> Admitted: ...


def compile_admission(shape: Shape) -> Admission:
    """Compile the admission of objects of a shape. Shapes of built-in definitions use the admission of built-in kinds,
    all others that of custom resources, including their rules (raises RulesUnsupported)."""
    return _built_in(shape) if shape.name else _custom(shape)


class _AdmittedSpecs:
    """Specs of new objects that were admitted without a finding, by their JSON text.

    Admission without an old object is a function of that text, and another schema has another instance, so an entry
    is never outdated. Rules are no part of it: they are evaluated for every object, because they may compare the spec
    with other fields.
    """

    def __init__(self) -> None:
        self._specs = JsonCache[Object]()

    def look_up(self, new: Object) -> tuple[Object, Any, bytes]:
        """The object with the admitted form of its spec, and what counts as admitted of it. For a spec that was not
        admitted before: the object itself, MISSING, and the text to remember its spec by (empty: do not remember)."""
        spec = new.get("spec") if new.__class__ is dict else None
        if spec.__class__ is not dict:
            return new, MISSING, b""
        text = text_of(spec)
        admitted = self._specs.get(text)
        if admitted is None:
            return new, MISSING, text
        if admitted is UNCHANGED:
            return new, {"spec": spec}, b""
        return {**new, "spec": admitted}, {"spec": admitted}, b""

    def remember(self, text: bytes, new: Object, result: Object) -> None:
        if "spec" in result:
            self._specs.put(text, UNCHANGED if result["spec"] is new["spec"] else result["spec"])


def _built_in(shape: Shape) -> Admission:
    decode = Decoding().compile(shape)
    specs = _AdmittedSpecs()

    def admit(new: Object, old: Object | None = None) -> Admitted:
        found = Findings()
        new, before, text = specs.look_up(new) if old is None else (new, old, b"")
        try:
            result = decode(new, before, found)
        except Mismatch as mismatch:
            raise mismatch.undecodable() from None
        except RecursionError:
            raise TooDeep from None
        if text and not found:
            specs.remember(text, new, result)
        return Admitted(result, found.unknown_fields() if found else [])

    return admit


def _custom(shape: Shape) -> Admission:
    check = Checks().resource(shape)
    rules = compile_rules(shape)
    specs = _AdmittedSpecs()

    def admit(new: Object, old: Object | None = None) -> Admitted:
        found = Findings()
        new, before, text = specs.look_up(new) if old is None else (new, old, b"")
        try:
            result = check(new, before, found)
            if text and not found:
                specs.remember(text, new, result)
            admitted = _explained(check, result, old, found) if found else Admitted(result)
            if rules is not None:
                if any(cause.reason in _BLOCKING for cause in admitted.causes):
                    admitted.causes.append(_NOT_CHECKED)
                else:
                    admitted.causes += rules(admitted.object, old)
        except RecursionError:
            raise TooDeep from None
        return admitted

    return admit


def _explained(check: Check, result: Any, old: Object | None, found: Findings) -> Admitted:
    found.raise_undecodable()
    if old is not None and found.has(LIST_TYPE):
        # Existing duplicates are accepted: an object must stay editable after its schema became stricter.
        before = Findings()
        check(old, MISSING, before)
        if before.has(LIST_TYPE):
            found.drop_list_type_causes()
    return Admitted(result, sorted(found.unknown_fields()), found.causes())
