from __future__ import annotations

from sandpool.api.schema.shape import Shape
from sandpool.server.apply.fieldset import decode
from sandpool.server.apply.reconcile import reconcile


def test_a_container_that_became_atomic_is_owned_as_a_whole(spec: Shape) -> None:
    fields = decode({"f:pair": {"f:left": {}}, "f:steps": {".": {}, 'v:"a"': {}}, "f:limits": {"f:a": {}}})
    assert reconcile(fields, spec).fields == {"f:limits": {"f:a": {}}, "f:pair": {}, "f:steps": {}}


def test_what_fits_stays_as_it_is(spec: Shape) -> None:
    fields = decode(
        {"f:pair": {}, "f:tags": {'v:"a"': {}}, "f:anything": {"f:a": {"f:b": {}}}, "f:unknown": {"f:x": {}}}
    )
    assert reconcile(fields, spec) is fields
