from __future__ import annotations

import pytest

from sandpool.bench.figures import Figure, percentile


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0 ms"), (1234, "1,234 ms"), (0.0, "0.00 ms"), (12.34, "12.3 ms"), (1234.5, "1,234 ms")]
)
def test_count_is_shown_without_decimals(value: float, expected: str) -> None:
    assert Figure("", value, "ms").shown == expected


def test_percentile_is_a_measured_value() -> None:
    assert [percentile([3.0, 1.0, 2.0], percent) for percent in (0, 50, 99, 100)] == [1.0, 2.0, 3.0, 3.0]
