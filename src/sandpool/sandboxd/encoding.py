"""JSON and percent-decoding without the imports of ``json`` and ``urllib``.

``_json`` is the C module on which ``json`` is built.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_BLANK = " \t\n\r"


class _ScannerOptions:
    """Options of ``make_scanner``: the defaults of ``json.loads``."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float  # NaN and the infinities


_scan = make_scanner(_ScannerOptions())  # type: ignore[arg-type]  # it reads no other attributes


def from_json(text: bytes) -> Any:
    """Decode a JSON text. Raises ``ValueError``."""
    content = text.decode().strip(_BLANK)
    try:
        value, end = _scan(content, 0)
    except StopIteration as error:
        raise ValueError(f"Expecting value: char {error.value}") from None
    except RecursionError:
        raise ValueError("Too many values within each other") from None
    except SystemError:
        # The scanner looks up ``json.JSONDecodeError`` among the imported modules and fails, because ``json`` is not
        # imported.
        raise ValueError("Not JSON") from None
    if end != len(content):
        raise ValueError(f"Extra data: char {end}")
    return value


def to_json(value: object) -> str:
    """Encode a value of the types that responses consist of."""
    match value:
        case str():
            return encode_basestring_ascii(value)
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case dict():
            return "{" + ", ".join([f"{to_json(str(name))}: {to_json(each)}" for name, each in value.items()]) + "}"
        case list() | tuple():
            return "[" + ", ".join([to_json(each) for each in value]) + "]"
    raise TypeError(f"{type(value).__name__} has no JSON")


def unquote(path: str) -> str:
    """Percent-decode a path. Bytes that are not UTF-8 become surrogates, as in file names of ``os``."""
    first, *rest = path.split("%")
    if not rest:
        return path
    parts = [first.encode()]
    for part in rest:
        if len(part) >= 2 and part[0] in _HEXADECIMAL and part[1] in _HEXADECIMAL:
            parts += [bytes((int(part[:2], 16),)), part[2:].encode()]
        else:
            parts += [b"%", part.encode()]
    return b"".join(parts).decode(errors="surrogateescape")
