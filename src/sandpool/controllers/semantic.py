"""Whether two values of a Kubernetes type mean the same, however they are written.

A manifest may leave a field out or write it as empty, and may write an amount as ``1Gi`` or ``1024Mi``. Nobody wants a
pool replaced because of that. Which of these differences count is a property of the field, so the comparison is led
by its shape: a field that Go declares as a pointer tells empty from absent (``emptyDir: {}`` is a volume, no
``emptyDir`` is none), every other does not.
"""

from __future__ import annotations

from typing import Any, Final

from sandpool.api import quantity
from sandpool.api.schema.shape import Shape

_ANYTHING: Final = Shape()


def same(left: Any, right: Any, shape: Shape) -> bool:
    """Whether two values of this shape mean the same. Order counts in lists; what has no shape is compared as it is."""
    if left is right:
        return True
    if shape.format == "quantity":
        return _same_amount(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        items = shape.items or _ANYTHING
        return len(left) == len(right) and all(same(a, b, items) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return all(
            _same_field(left.get(key), right.get(key), shape.properties.get(key) or shape.additional or _ANYTHING)
            for key in left.keys() | right.keys()
        )
    return bool(left == right)


def _same_field(left: Any, right: Any, shape: Shape) -> bool:
    if _absent(left, shape) or _absent(right, shape):
        return _absent(left, shape) and _absent(right, shape)
    return same(left, right, shape)


def _absent(value: Any, shape: Shape) -> bool:
    if value is None:
        return True
    is_pointer = shape.zero == "keep" or shape.int_or_string
    return not value and not is_pointer and shape is not _ANYTHING


def _same_amount(left: Any, right: Any) -> bool:
    try:
        return quantity.parse(left) == quantity.parse(right)
    except (ValueError, TypeError):  # not a quantity: a schema that does not check pods let it through
        return bool(left == right)
