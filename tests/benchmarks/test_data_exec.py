from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from benchmarks.data_exec import exec_path, executions


class Api:
    """Says of every command how it ended."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.verdict = b'{"status":"Success"}'

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        talk = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await talk.prepare(request)
        await talk.send_bytes(b"\x01hello")
        await talk.send_bytes(b"\x03" + self.verdict)
        await talk.close()
        return talk


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = Api()
    runner = web.ServerRunner(web.Server(api.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    yield api
    await runner.cleanup()


async def test_every_command_runs_to_its_end_and_is_timed(api: Api, tmp_path: Path) -> None:
    took = await executions(tmp_path / "kubeconfig", exec_path("box", "echo", "a b"), 3)
    path = "/api/v1/namespaces/default/pods/box/exec?command=echo&command=a%20b&stdout=true&stderr=true"
    assert api.asked == [path] * 3
    assert len(took) == 3 and all(0 < seconds < 60 for each in took for seconds in each)


async def test_failing_command_is_not_measured(api: Api, tmp_path: Path) -> None:
    api.verdict = b'{"status":"Failure"}'
    with pytest.raises(AssertionError, match="Failure"):
        await executions(tmp_path / "kubeconfig", exec_path("box", "false"), 1)
