from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest_asyncio
from aiohttp import web

from benchmarks.data_client import Job


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.headers["X-Sandbox-ID"] == "box"
        return web.Response(body=b"x" * (300_000 if request.path == "/download/large" else 10))

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def measured(job: Job) -> dict[str, object]:
    process = await asyncio.create_subprocess_exec(sys.executable, *job.arguments(), stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, object] = json.loads(output)
    return found


async def test_every_request_is_answered_and_measured(port: int) -> None:
    job = Job("requests", "127.0.0.1", port, headers={"X-Sandbox-ID": "box"}, count=200, at_once=8)
    latencies = (await measured(job))["latencies"]
    assert isinstance(latencies, list) and len(latencies) == 200
    assert all(0 < each < 60 for each in latencies)


async def test_download_is_read_to_its_end(port: int) -> None:
    job = Job("download", "127.0.0.1", port, path="/download/large", headers={"X-Sandbox-ID": "box"})
    assert (await measured(job))["bytes"] == 300_000
