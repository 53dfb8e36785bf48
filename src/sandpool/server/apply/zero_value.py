"""What an object is before anything is set.

Built-in kinds are Go structs in Kubernetes, and a struct has its inner structs from the start. Whoever creates a
Deployment therefore sets fields *in* ``spec.template.spec`` but does not bring the field itself into being, and does
not own it. Custom resources start from nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape

_ZEROS: Final = ("", 0, False)


def zero_value(shape: Shape) -> Object:
    """The object of this shape with nothing set. A shape with a name is that of a built-in kind."""
    return _zero_value(shape) if shape.name else {}


@lru_cache(None)
def _zero_value(shape: Shape) -> Object:
    found: Object = {}
    for name, inner in shape.properties.items():
        if inner.zero == "null":
            found[name] = None
        elif inner.default == {}:
            found[name] = _zero_value(inner)
        elif inner.default in _ZEROS and inner.zero != "omit":
            found[name] = inner.default
    return found


def without_scalars(zero_value: Object) -> Object:
    """A blank object as it is written: without what is not there."""
    return {name: without_scalars(value) for name, value in zero_value.items() if isinstance(value, dict)}
