"""What an object of a built-in kind is before anything is set.

Built-in kinds are Go structs in Kubernetes, and a struct has its inner structs from the start. Whoever creates a
Deployment therefore sets fields *in* ``spec.template.spec`` but does not bring the field itself into being, and does
not own it. The OpenAPI document tells the two apart: a field that is there from the start has ``{}`` as its default,
and one that is written even when there is nothing in it is required. Custom resources start from nothing.
"""

from __future__ import annotations

from functools import lru_cache

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape


@lru_cache(None)
def blank(shape: Shape) -> Object:
    """The blank object of a built-in kind, to be passed to ``track_update`` and ``apply``."""
    found: Object = {}
    for name, inner in shape.properties.items():
        if inner.default == {}:
            found[name] = blank(inner)
        elif name in shape.required and inner.type in ("array", "object"):
            found[name] = None
    return found


def present(blank: Object) -> Object:
    """A blank object as it is written: what is null is left out."""
    return {
        name: present(value) if isinstance(value, dict) else value for name, value in blank.items() if value is not None
    }
