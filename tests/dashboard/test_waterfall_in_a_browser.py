"""The waterfall of a claim as a page, from an audit log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from sandpool.dashboard.target import DashboardTarget
from sandpool.explain.log_files import LogFiles
from sandpool.testing.world import World
from tests.dashboard.conftest import serving
from tests.explain.audit_lines import BEGIN, ours
from tests.support.browser import Browser


async def test_page_of_a_claim_shows_its_calls_as_soon_as_the_log_has_them(
    browser: Browser, world: World, target: DashboardTarget, tmp_path: Path
) -> None:
    claim = await world.claim("applied")
    zero = (datetime.fromisoformat(claim["metadata"]["creationTimestamp"]) - BEGIN).total_seconds() * 1000
    log = tmp_path / "shown.log"  # that of the world has its own calls
    log.write_bytes(b"")
    async with serving(world, replace(target, audit_log=LogFiles((log,), ()).lines)) as served:
        page = await browser.page()
        await page.goto(served.login_url())
        await page.wait("document.querySelector('.page-header')")
        await page.goto(f"{served.url}/claims/{world.namespace}/applied")
        await page.see("no call about this claim")
        log.write_bytes(
            ours(
                zero - 900, "create", "sandboxes", "box", namespace=world.namespace, owner="SandboxWarmPool/p", code=201
            )
            + ours(zero, "patch", "sandboxclaims", "applied", namespace=world.namespace, code=201)
            + ours(zero + 5, "patch", "sandboxes", "box", namespace=world.namespace, owner="SandboxClaim/applied")
        )
        await page.see("claim created (applied)")
        await page.see("adopted for claim applied")
        await page.see("Before: how its sandbox came to be, 1 step")
        assert page.problems == []
