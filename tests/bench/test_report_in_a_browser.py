"""The HTML report as a browser lays it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandpool.bench.html_report import page
from tests.bench.test_html_report import document, run
from tests.dashboard.conftest import browser, browser_address  # noqa: F401 - fixtures
from tests.support.browser import Browser

#: Labels of plots of which a part is outside of their plot, where a browser does not draw it.
CUT_OFF = """[...document.querySelectorAll('svg text')].filter(each => {
  const label = each.getBoundingClientRect(), plot = each.ownerSVGElement.getBoundingClientRect();
  return label.left < plot.left - 0.5 || label.right > plot.right + 0.5
    || label.top < plot.top - 0.5 || label.bottom > plot.bottom + 0.5;
}).map(each => each.textContent.trim())"""
ALL = "[...document.querySelectorAll('svg text')].map(each => each.textContent.trim())"
#: How many pixels wider the page is than its window.
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def _with_long_names() -> str:
    counts = [
        {"writer": "controllers", "what": "patch sandboxwarmpools/status", "count": 123_456},
        {"writer": "client", "what": "create sandboxclaims", "count": 1},
    ]
    slow: dict[str, Any] = {"p50": 20.0, "p90": 123_456.7, "p99": 1_234_567.8, "p100": 1_234_567.8}
    runs = [
        run(requests=counts),
        run(scenario="sustained", home="kubernetes", requests=counts, latency_ms=slow, samples=[[0.0, 1234.5678]]),
    ]
    return page(document(*runs))


@pytest.mark.parametrize("width", [1280, 400], ids=["desktop", "phone"])
async def test_no_label_of_a_report_is_cut_off(browser: Browser, tmp_path: Path, width: int) -> None:  # noqa: F811
    (tmp_path / "report.html").write_text(_with_long_names())
    tab = await browser.page()
    await tab.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 800
    )
    await tab.goto(f"file://{tmp_path}/report.html")
    assert len(await tab.evaluate(ALL)) > 20
    assert await tab.evaluate(CUT_OFF) == []
    assert "1,500,000" in await tab.evaluate(ALL), "a number of milliseconds is written out"
    assert await tab.evaluate(TOO_WIDE) <= 0
    assert tab.problems == []
