"""What Go's JSON decoder says about a text that should be an object and is not."""

from __future__ import annotations

import json
from typing import Final

_AFTER: Final = {
    "Expecting value": "looking for beginning of value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Extra data": "after top-level value",
}
_TYPES: Final = {str: "string", bool: "bool", float: "number", list: "array"}


def json_object_error(text: bytes) -> str:
    """What is wrong, empty if nothing is. The words are Go's for the common mistakes, and close to them otherwise."""
    try:
        value = json.loads(text.decode(errors="replace"), parse_int=float)  # which no number is too long for
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()):
            return "unexpected end of JSON input"
        return f"invalid character '{error.doc[error.pos]}' {_AFTER.get(error.msg, 'in JSON input')}"
    except RecursionError:
        return "exceeded max depth"
    if value is None or isinstance(value, dict):
        return ""
    return f"json: cannot unmarshal {_TYPES[type(value)]} into Go value of type map[string]interface {{}}"
