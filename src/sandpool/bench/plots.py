"""Plots as SVG, drawn by hand: lines over axes, bars, and a waterfall. Colours are the page's, by class.

Every function returns one ``<svg>`` that needs nothing from outside. Texts are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

Point = tuple[float, float]

WIDTH: Final = 720
_HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 40
_ROW: Final = 22  # of bars
_LETTER: Final = 6.6  # width of a letter of 12 pixels, at most on average
_DIGIT: Final = 8.0  # width of a digit, in wide fonts
_MIN_LABELS, _MAX_LABELS = 120, 380  # width of the names of bars
_MIN_VALUES: Final = 60  # width of the values of bars
#: Points drawn per line; more are indistinguishable.
MOST_POINTS: Final = 600
#: Number of colours of the page.
COLOURS: Final = 6


@dataclass(frozen=True, slots=True)
class Line:
    """A line: ``points`` ordered by x. A ``stepped`` line keeps its value until the next point."""

    label: str
    points: Sequence[Point]
    stepped: bool = False


def lines(drawn: Sequence[Line], x_label: str, y_label: str) -> str:
    """Draw lines over common axes that begin at 0."""
    x_end, x_ticks = axis(max((x for line in drawn for x, _ in line.points), default=0.0))
    y_end, y_ticks = axis(max((y for line in drawn for _, y in line.points), default=0.0))
    width, height = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + width * x / x_end

    def down(y: float) -> float:
        return _TOP + height * (1 - y / y_end)

    parts = []
    for tick in y_ticks:
        y = down(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    below = _HEIGHT - _BOTTOM + 16
    for tick in x_ticks:
        label = f"{tick:,.10g}"
        x, anchor = across(tick), "middle"
        if x + _width(label, _DIGIT) / 2 > WIDTH:
            x, anchor = WIDTH, "end"
        parts.append(f'<text x="{x:.1f}" y="{below}" text-anchor="{anchor}">{label}</text>')
    parts.append(f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    middle = _TOP + height / 2
    turned = f'text-anchor="middle" transform="rotate(-90 12 {middle})"'
    parts.append(f'<text x="12" y="{middle}" {turned}>{escape(y_label)}</text>')
    for number, line in enumerate(drawn):
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in _corners(thinned(line.points), line.stepped))
        colour = number % COLOURS
        parts.append(
            f'<polyline class="line c{colour}" points="{points}"><title>{escape(line.label)}</title></polyline>'
        )
    return _svg(_HEIGHT, parts, f"{y_label} by {x_label}") + _legend([line.label for line in drawn])


def bars(rows: Sequence[tuple[str, float, int]]) -> str:
    """Draw horizontal bars: a name, a value and a colour number."""
    end = max((value for _, value, _ in rows), default=0.0) or 1.0
    labels = _label_width(name for name, _, _ in rows)
    room = WIDTH - labels - _value_width(f"{value:,.2f}" for _, value, _ in rows)
    parts = []
    for number, (name, value, colour) in enumerate(rows):
        y = number * _ROW
        length = max(room * value / end, 1.0)
        parts.append(f'<text x="{labels - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect class="c{colour % COLOURS}" x="{labels}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}"/>'
        )
        parts.append(f'<text x="{labels + length + 6:.1f}" y="{y + 15}">{value:,.2f}</text>')
    return _svg(len(rows) * _ROW + 4, parts, "bars")


def waterfall(steps: Sequence[tuple[str, float, float, int]]) -> str:
    """Draw phases below each other: start and end in milliseconds and a colour number."""
    end = max((to for _, _, to, _ in steps), default=0.0) or 1.0
    labels = _label_width(name for name, *_ in steps)
    room = WIDTH - labels - _value_width(f"{to - begin:,.1f} ms" for _, begin, to, _ in steps)
    parts = []
    for number, (name, begin, to, colour) in enumerate(steps):
        y, x, length = number * _ROW, labels + room * begin / end, max(room * (to - begin) / end, 1.0)
        parts.append(f'<text x="{labels - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(
            f'<rect class="c{colour % COLOURS}" x="{x:.1f}" y="{y + 4}" width="{length:.1f}" height="{_ROW - 8}">'
            f"<title>{escape(name)}: from {begin:,.1f} to {to:,.1f} ms</title></rect>"
        )
        parts.append(f'<text x="{x + length + 6:.1f}" y="{y + 15}">{to - begin:,.1f} ms</text>')
    return _svg(len(steps) * _ROW + 4, parts, "waterfall of one claim")


def _label_width(names: Iterable[str]) -> int:
    """Return a width in which every name fits, up to a limit."""
    longest = max(map(_width, names), default=0)
    return min(max(longest + 12, _MIN_LABELS), _MAX_LABELS)


def _value_width(values: Iterable[str]) -> int:
    """Return a width in which every value fits behind its bar."""
    return max(max((_width(value, _DIGIT) for value in values), default=0) + 8, _MIN_VALUES)


def _width(text: str, letter: float = _LETTER) -> int:
    return math.ceil(len(text) * letter)


def axis(largest: float) -> tuple[float, list[float]]:
    """Return the end of an axis that begins at 0 and about five round ticks."""
    if largest <= 0:
        return 1.0, [0.0, 1.0]
    rough = largest / 5
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))
    count = math.ceil(largest / step - 1e-9)
    return count * step, [round(number * step, 10) for number in range(count + 1)]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Thin out points. Each group keeps its lowest and highest point, so no peak is lost."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(2 * len(points) / (most - 2))
    kept = {0, len(points) - 1}
    for begin in range(0, len(points), size):
        group = range(begin, min(begin + size, len(points)))
        kept |= {min(group, key=lambda i: points[i][1]), max(group, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def _corners(points: Sequence[Point], stepped: bool) -> list[Point]:
    if not stepped:
        return list(points)
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return corners


def _legend(labels: Sequence[str]) -> str:
    entries = (
        f'<span><i class="c{number % COLOURS}"></i>{escape(label)}</span>' for number, label in enumerate(labels)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    content = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{content}</svg>'
