from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.schema.findings import Undecodable
from sandpool.api.schema.times import read_micro_time, read_time


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("2026-01-01T01:02:03Z", "2026-01-01T01:02:03Z"),
        ("2026-01-01T01:02:03.999Z", "2026-01-01T01:02:03Z"),
        ("2026-01-01T01:02:03+01:00", "2026-01-01T00:02:03Z"),
        ("2026-01-01T00:02:03-01:30", "2026-01-01T01:32:03Z"),
        ("0999-12-31T23:59:59Z", "0999-12-31T23:59:59Z"),
    ],
)
def test_times_are_stored_in_utc_to_the_second(text: str, stored: str) -> None:
    assert read_time(text) == stored


def test_micro_times_keep_six_digits() -> None:
    assert read_micro_time("2026-01-01T01:02:03.456789+01:00") == "2026-01-01T00:02:03.456789Z"
    assert read_micro_time("2026-01-01T01:02:03.000000Z") == "2026-01-01T01:02:03.000000Z"


LAYOUT = "2006-01-02T15:04:05Z07:00"
MICRO = "2006-01-02T15:04:05.000000Z07:00"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x", f' as "{LAYOUT}": cannot parse "x" as "2006"'),
        ("", f' as "{LAYOUT}": cannot parse "" as "2006"'),
        ("2026-01-01 01:02:03", f' as "{LAYOUT}": cannot parse " 01:02:03" as "T"'),
        ("2026-01-01T01:02:03", f' as "{LAYOUT}": cannot parse "" as "Z07:00"'),
        ("2026-13-01T01:02:03Z", ": month out of range"),
        ("2026-02-30T01:02:03Z", ": day out of range"),
        ("2026-01-01T25:02:03Z", ": hour out of range"),
        ("2026-01-01T01:02:03Zx", ': extra text: "x"'),
    ],
)
def test_invalid_time_is_reported_in_the_words_of_go(text: str, problem: str) -> None:
    with pytest.raises(Undecodable) as raised:
        read_time(text)
    assert str(raised.value) == f'parsing time "{text}"{problem}'


@pytest.mark.parametrize(
    ("text", "rest"), [("2026-01-01T01:02:03Z", "Z"), ("2026-01-01T01:02:03.4567891+01:00", "1+01:00")]
)
def test_micro_times_need_exactly_six_digits(text: str, rest: str) -> None:
    with pytest.raises(Undecodable) as raised:
        read_micro_time(text)
    element = ".000000" if rest == "Z" else "Z07:00"
    assert str(raised.value) == f'parsing time "{text}" as "{MICRO}": cannot parse "{rest}" as "{element}"'


@given(st.text(max_size=30) | st.datetimes().map(lambda moment: moment.isoformat() + "Z"))
def test_reading_a_time_is_idempotent(text: str) -> None:
    try:
        stored = read_time(text)
    except Undecodable:
        return
    assert read_time(stored) == stored


_DIGITS = st.integers(0, 99).map(lambda number: f"{number:02}")


@given(st.sampled_from(["0000", "0001", "1900", "2024", "2030"]), st.tuples(*[_DIGITS] * 5))
def test_stored_form_is_accepted_exactly_if_its_parts_are(year: str, rest: tuple[str, ...]) -> None:
    """The stored form is recognised at once; with another spelling of the zone each part is read and checked."""
    month, day, hour, minute, second = rest
    text = f"{year}-{month}-{day}T{hour}:{minute}:{second}"

    def read(text: str) -> str:
        try:
            return read_time(text)
        except Undecodable:
            return "undecodable"

    assert read(f"{text}Z") == read(f"{text}+00:00")
