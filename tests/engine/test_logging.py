"""Log formats and contexts."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.engine.logging import JSON, TEXT, JsonFormatter, TextFormatter, configure_logging, log_context

log = logging.getLogger("a.b")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; the configuration of logging is put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield io.StringIO()
    root.handlers, root.level = handlers, level


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(each) for each in stream.getvalue().splitlines()]


def line(formatter: logging.Formatter, fields: dict[str, Any]) -> str:
    """The line of a message that is logged in a context with these fields."""
    made = log.makeRecord("a.b", logging.ERROR, "", 0, "it is %s", ("so",), None)
    made.created = 1794816000.25
    with log_context(**fields):
        return formatter.format(made)


def as_json(**fields: Any) -> Any:
    return json.loads(line(JsonFormatter(), fields))


def test_json_has_the_record_and_the_fields_of_its_context() -> None:
    assert as_json(sandbox="s", count=3) == {
        "time": "2026-11-16T08:00:00.250000Z",
        "level": "error",
        "logger": "a.b",
        "message": "it is so",
        "sandbox": "s",
        "count": 3,
    }


def test_json_of_an_exception_is_one_line(stream: io.StringIO) -> None:
    configure_logging(JSON, stream=stream)
    try:
        raise ValueError("broken\nhere")
    except ValueError:
        log.exception("oh", stack_info=True)
    [entry] = entries(stream)
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ValueError: broken\nhere")
    assert "test_json_of_an_exception" in entry["stack"]


def test_fields_can_have_any_name() -> None:
    entry = as_json(name="x", message="y", args=[1], time="z")
    assert entry["message"] == "it is so"
    assert (entry["name"], entry["message_"], entry["args"], entry["time_"]) == ("x", "y", [1], "z")


@pytest.mark.parametrize("value", ["half a character: \ud800", 2**70, {1: object()}, {frozenset()}, b"\xff"])
def test_values_that_are_not_json_are_logged_as_text(value: object) -> None:
    assert "odd" in as_json(odd=value)


def test_log_context_adds_fields_and_nests() -> None:
    with log_context(controller="claim", key="team/a"):
        with log_context(key="team/b"):
            inner = as_json(sandbox="s")
        outer = as_json(controller="own")
    assert (inner["controller"], inner["key"], inner["sandbox"]) == ("claim", "team/b", "s")
    assert (outer["controller"], outer["key"]) == ("own", "team/a")
    assert "key" not in as_json()


async def test_log_context_is_per_task(stream: io.StringIO) -> None:
    configure_logging(JSON, stream=stream)

    async def reconcile(key: str) -> None:
        with log_context(key=key):
            for _ in range(3):
                log.info("%s", key)
                await asyncio.sleep(0)

    await asyncio.gather(*(reconcile(key) for key in "abc"))
    assert len(entries(stream)) == 9
    assert all(entry["key"] == entry["message"] for entry in entries(stream))


def test_text_has_quoted_fields_after_the_message(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    with log_context(key="team/a", note='has "quotes" and\nlines', count=3, empty=""):
        log.info("bound to %s", "it")
    pattern = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO a\.b: bound to it "
        r'key=team/a note="has \\"quotes\\" and\\nlines" count=3 empty=""\n'
    )
    assert re.fullmatch(pattern, stream.getvalue())


def test_text_of_an_exception_follows_its_line(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        with log_context(key="a"):
            log.exception("oh")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("oh key=a")
    assert rest[-1] == "ValueError: broken"


def test_records_below_the_level_are_dropped(stream: io.StringIO) -> None:
    configure_logging(JSON, "WARNING", stream)
    log.info("no")
    log.warning("yes")
    assert [entry["message"] for entry in entries(stream)] == ["yes"]


def test_configuring_twice_replaces_the_handler(stream: io.StringIO) -> None:
    configure_logging(TEXT, stream=stream)
    configure_logging(JSON, stream=stream)
    log.info("once")
    assert len(entries(stream)) == 1


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_log_line_has_no_line_break_whatever_the_fields(values: dict[str, str]) -> None:
    written = line(JsonFormatter(), values)
    assert len(written.split("\n")) == 1
    entry = json.loads(written)
    assert all(entry.get(f"{name}_", entry.get(name)) == value for name, value in values.items())
    assert "\n" not in line(TextFormatter(), {"key": "".join(values.values())})
