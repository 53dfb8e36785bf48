"""The server's own log."""

from __future__ import annotations

import json
import logging
import sys

from sandpool.cli.log_format import JsonLines


def test_json_lines() -> None:
    try:
        raise ValueError("broken\nhere")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "", 0, "it is %s", ("so",), sys.exc_info())
    record.created = 1794816000.25
    line = JsonLines().format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry.pop("exception").endswith("ValueError: broken\nhere")
    assert entry == {
        "time": "2026-11-16T08:00:00.250000+00:00",
        "level": "error",
        "logger": "a.b",
        "message": "it is so",
    }
