"""The parser of HTTP requests, without what it imports.

httptools' parser is compiled and imports ``typing`` for the sake of its annotations, and with it patterns, enums and
much else: half of what it would take to start a sandbox. So it finds something else of that name while it is loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False


class _StandIn:
    """Has every name, anything can be looked up in it, and a class can be made of it: enough for annotations, and for a
    whole httptools, which has more than the parser in it."""

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, item: object) -> _StandIn:
        return self

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[()]:
        return ()


if TYPE_CHECKING or "typing" in sys.modules:
    from httptools.parser.errors import HttpParserError as HttpParserError
    from httptools.parser.errors import HttpParserUpgrade as HttpParserUpgrade
    from httptools.parser.parser import HttpRequestParser as HttpRequestParser
else:
    sys.modules["typing"] = _StandIn()
    try:
        from httptools.parser.errors import HttpParserError as HttpParserError
        from httptools.parser.errors import HttpParserUpgrade as HttpParserUpgrade
        from httptools.parser.parser import HttpRequestParser as HttpRequestParser
    finally:
        del sys.modules["typing"]
