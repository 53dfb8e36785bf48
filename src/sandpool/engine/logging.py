"""Logging: one line per message, as text or as JSON.

A message is a sentence. The objects it is about are separate fields that can be searched for::

    with log_context(controller="sandboxclaim", key="team/a"):
        log.info("bound to %s", sandbox)

All messages logged within ``log_context``, by any module, carry its fields.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson

from sandpool.engine.clock import micro_timestamp

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)

_context: ContextVar[dict[str, Any] | None] = ContextVar("log_context", default=None)


def configure_logging(form: str = TEXT, level: int | str = logging.INFO, stream: TextIO | None = None) -> None:
    """Send messages of ``level`` and above to ``stream`` (default: standard error), and nowhere else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == JSON else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def logging_settings() -> tuple[str, int]:
    """The format and the level that ``configure_logging`` was called with, for another process with the same log."""
    root = logging.getLogger()
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers)
    return JSON if is_json else TEXT, root.level


class log_context:
    """Add fields to all messages of this task within the block, in addition to those of an outer block."""

    __slots__ = ("_token", "fields")

    def __init__(self, /, **values: Any) -> None:
        self.fields = values

    def __enter__(self) -> None:
        outer = _context.get()
        self._token = _context.set({**outer, **self.fields} if outer else self.fields)

    def __exit__(self, *error: object) -> None:
        _context.reset(self._token)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": micro_timestamp(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in (_context.get() or {}).items():
            entry[f"{name}_" if name in entry else name] = value
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = record.stack_info
        try:
            return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:
            # orjson refuses lone surrogates and integers of more than 64 bits; json is slower but writes them.
            return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record) + "".join(
            f" {name}={_quoted(str(value))}" for name, value in (_context.get() or {}).items()
        )


def _quoted(value: str) -> str:
    """Quote a value if it would be ambiguous in a line of ``name=value`` pairs or span several lines."""
    return value if value.isprintable() and value and not set(value) & set(' "=') else json.dumps(value)
