"""Fixtures and reporting shared by all tests."""

from __future__ import annotations

import os

import pytest

from sandpool.testing.assets import Assets, MissingAssets, find_assets

NO_KUBERNETES = "no real Kubernetes to compare with"


@pytest.fixture(scope="session")
def kubernetes_assets() -> Assets:
    """The binaries of a real control plane. Missing ones skip the test, unless they are required to be there."""
    try:
        return find_assets()
    except MissingAssets as missing:
        if os.environ.get("SANDPOOL_REQUIRE_KUBERNETES") == "1":
            raise
        pytest.skip(f"{NO_KUBERNETES}: {missing}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line that the comparison did not take place, so that a green run is not taken for more than it is."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NO_KUBERNETES in report.longrepr[2]
    ]
    if skipped:
        reason = skipped[0].longrepr[2].removeprefix("Skipped: ")
        terminalreporter.write_line(f"{len(skipped)} tests skipped, {reason}", yellow=True)
