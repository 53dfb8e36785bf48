from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, BadRequest, TooLarge
from sandpool.kube.transport import APPLY_PATCH
from sandpool.server.api_server import ApiServer
from sandpool.server.request.body import decode_yaml
from sandpool.server.request.messages import ServerRequest, User
from sandpool.server.request.yaml_worker import LARGE, YamlWorker
from sandpool.testing.objects import new
from sandpool.testing.waiting import until

ADMIN = User("admin", ("system:masters",))
YAML = "application/yaml"


@pytest.mark.parametrize(
    "data",
    [
        b"a: {b: [1, 2.5, ~, yes, 2026-01-02], 3: text}",
        b"a: 1\nb: {c: 1, c: 2}\na: 3",
        "a: ä\u2028\nb: |\n  one\n  two\n".encode(),
        b"[" * 254 + b"]" * 254,
    ],
)
async def test_worker_decodes_like_the_server(data: bytes) -> None:
    assert await YamlWorker().decode(data) == decode_yaml(data)


@pytest.mark.parametrize("data", [b"a: b: c", b"~", b"[" * 300, b"&a [*a]", b"a: \xff"])
async def test_worker_rejects_like_the_server(data: bytes) -> None:
    with pytest.raises(BadRequest) as here:
        decode_yaml(data)
    with pytest.raises(BadRequest) as there:
        await YamlWorker().decode(data)
    assert there.value.message == here.value.message


async def test_failing_worker_is_reported_as_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TooLarge, match="use JSON"):
        await YamlWorker().decode(b"a: 1")


async def test_cancelled_decoding_kills_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, written = tmp_path / "slow", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ > {written}.new; /bin/mv {written}.new {written}; exec /bin/sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    decoding = asyncio.create_task(YamlWorker().decode(b"a: 1"))

    async def begun() -> bool:
        return written.exists()

    await until(begun)
    decoding.cancel()
    await asyncio.gather(decoding, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(written.read_text()), 0)


# Requests -------------------------------------------------------------------------------------------------------------


def large(text: bytes) -> bytes:
    return text + b"# " + b"x" * LARGE


async def ask(server: ApiServer, method: str, path: str, body: bytes, content_type: str = YAML, **query: str) -> Any:
    request = ServerRequest(method, path, ADMIN, query, headers={"content-type": content_type}, body=body)
    return await server.handler.handle(request)


async def test_large_bodies_are_decoded_like_small_ones(server: ApiServer, client: Client) -> None:
    path = CONFIG_MAP.path("default")
    text = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata: {k: '1'}\n"
    await ask(server, "POST", path, large(text))
    await ask(server, "PUT", f"{path}/a", large(text.replace(b"'1'", b"'2'")))
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "2"}
    applied = large(text.replace(b"{k: '1'}", b"{l: '3'}"))
    await ask(server, "PATCH", f"{path}/a", applied, APPLY_PATCH, fieldManager="t")
    assert (await client.get(CONFIG_MAP, "a", "default"))["data"] == {"k": "2", "l": "3"}


@pytest.mark.parametrize("text", [b"a: b: c\n", b"[1]\n", b"kind: 1\n", b"kind: ConfigMap\na: 1\na: 2\n"])
async def test_large_bodies_are_rejected_like_small_ones(server: ApiServer, text: bytes) -> None:
    refusals: list[str] = []
    for body in (text, large(text)):
        with pytest.raises(ApiError) as refused:
            await ask(server, "POST", CONFIG_MAP.path("default"), body, fieldValidation="Strict")
        refusals.append(refused.value.message)
    assert refusals[0] == refusals[1]


async def test_delete_options_are_decoded_in_the_server(server: ApiServer, client: Client) -> None:
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "a"), "default")
    with pytest.raises(TooLarge, match="the limit is"):
        await ask(server, "DELETE", CONFIG_MAP.path("default", "a"), large(b"kind: DeleteOptions\napiVersion: v1\n"))


async def test_other_requests_are_served_while_a_large_body_is_decoded(server: ApiServer, client: Client) -> None:
    data = b"".join(b"  k%d: v\n" % number for number in range(50_000))
    body = b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\ndata:\n" + data
    creating = asyncio.create_task(ask(server, "POST", CONFIG_MAP.path("default"), body))
    served = 0
    while not creating.done():
        await client.list(CONFIG_MAP, "default")
        served += 1
        await asyncio.sleep(0)
    await creating
    assert served > 100
