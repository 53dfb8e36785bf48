from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from sandpool.bench.plots import Line, axis, bars, lines, thinned, waterfall


@pytest.mark.parametrize(
    ("largest", "end", "ticks"),
    [
        (0.0, 1.0, [0.0, 1.0]),
        (5.0, 5.0, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        (7.3, 8.0, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (600.0, 600.0, [0.0, 200.0, 400.0, 600.0]),
        (0.0042, 0.005, [0.0, 0.001, 0.002, 0.003, 0.004, 0.005]),
    ],
)
def test_axis_has_round_ticks_and_covers_all_values(largest: float, end: float, ticks: list[float]) -> None:
    found = axis(largest)
    assert found[0] == pytest.approx(end)
    assert found[1] == pytest.approx(ticks)


def test_thinning_keeps_ends_and_peaks() -> None:
    points = [(float(x), 1.0) for x in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[4322] = (4322.0, -99.0)
    kept = thinned(points, 100)
    assert len(kept) <= 102
    assert {points[0], points[-1], points[4321], points[4322]} <= set(kept)
    assert kept == sorted(kept)


def test_few_points_are_not_thinned() -> None:
    assert thinned([(0.0, 1.0), (1.0, 2.0)]) == [(0.0, 1.0), (1.0, 2.0)]


def svg(text: str) -> ElementTree.Element:
    """The plot and what stands below it, which must be well-formed."""
    return ElementTree.fromstring(f"<div>{text}</div>")


def coordinates(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def test_line_goes_from_the_origin_to_the_upper_right() -> None:
    (line,) = svg(lines([Line("a < b", [(0.0, 0.0), (10.0, 5.0)])], "x", "y")).iter("polyline")
    assert coordinates(line) == [(56.0, 220.0), (704.0, 12.0)]
    assert line.findtext("title") == "a < b"


def test_stepped_line_keeps_its_value_until_the_next_point() -> None:
    (line,) = svg(lines([Line("a", [(0.0, 5.0), (10.0, 0.0)], stepped=True)], "x", "y")).iter("polyline")
    assert coordinates(line) == [(56.0, 12.0), (704.0, 12.0), (704.0, 220.0)]


def test_bars_are_as_long_as_their_values() -> None:
    found = svg(bars([("a", 2.0, 0), ("b", 1.0, 1)]))
    first, second = (float(bar.attrib["width"]) for bar in found.iter("rect"))
    assert first == 2 * second
    assert [text.text for text in found.iter("text")] == ["a", "2.00", "b", "1.00"]


def test_waterfall_steps_are_contiguous() -> None:
    first, second = svg(waterfall([("call", 0.0, 4.0, 0), ("wait", 4.0, 8.0, 1)])).iter("rect")
    assert float(first.attrib["x"]) + float(first.attrib["width"]) == float(second.attrib["x"])
    assert second.findtext("title") == "wait: from 4.0 to 8.0 ms"


def test_empty_plots_are_valid_svg() -> None:
    for nothing in (lines([], "x", "y"), bars([]), waterfall([])):
        svg(nothing)


def test_names_of_bars_are_not_cut_off() -> None:
    name = "controllers: patch sandboxwarmpools/status"
    (x,) = re.findall(rf'<text x="(\d+)" y="15" text-anchor="end">{name}', bars([(name, 1.0, 0)]))
    assert int(x) >= len(name) * 6.5
