"""The ConfigMap of kube-apiserver is followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client, MergePatch
from sandpool.server.aggregated.authentication_config import NAME, NAMESPACE, AuthenticationConfig
from sandpool.server.aggregated.request_header import RequestHeaderConfig
from sandpool.server.api_server import ApiServer
from sandpool.server.serving.pki import Authority
from sandpool.testing.waiting import until


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Authority(tmp_path_factory.mktemp("pki"), SystemClock()).ca_pem


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    server = ApiServer(tmp_path)
    await server.start()
    yield server.client()
    await server.stop()


@pytest.fixture
async def config(client: Client) -> AsyncIterator[AuthenticationConfig]:
    config = AuthenticationConfig(client, SystemClock(), Random(1))
    following = asyncio.create_task(config.run())
    yield config
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def publish(client: Client, **data: Any) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {f"requestheader-{key.replace('_', '-')}": value for key, value in data.items()},
    }
    await client.create(CONFIG_MAP, body)


async def change(client: Client, **data: Any) -> None:
    changes = {f"requestheader-{key.replace('_', '-')}": value for key, value in data.items()}
    await client.patch(CONFIG_MAP, NAME, MergePatch({"data": changes}), NAMESPACE)


async def test_config_is_found_once_it_is_valid(client: Client, config: AuthenticationConfig, ca: str) -> None:
    await publish(client)

    async def complains() -> bool:
        return "--requestheader-client-ca-file" in config.problem

    await until(complains)
    assert not config.found.is_set()
    await change(client, client_ca_file=ca, username_headers='["X-Remote-User"]')
    await config.found.wait()
    assert config.problem == ""
    assert config.current is not None
    assert config.current.user_headers == ("x-remote-user",)


async def test_changes_are_followed_and_invalid_ones_ignored(
    client: Client, config: AuthenticationConfig, ca: str
) -> None:
    seen: list[RequestHeaderConfig] = []
    config.on_change = seen.append
    await publish(client, client_ca_file=ca, allowed_names='["a"]')
    await config.found.wait()
    assert seen == [], "the first one is no change"
    await change(client, allowed_names="nonsense")
    await change(client, allowed_names='["b"]')

    async def followed() -> bool:
        return bool(seen)

    await until(followed)
    assert [each.allowed_names for each in seen] == [{"b"}]
    await client.delete(CONFIG_MAP, NAME, NAMESPACE)

    async def gone() -> bool:
        return "is gone" in config.problem

    await until(gone)
    assert config.current == seen[-1], "the last valid configuration stays"


async def test_other_config_maps_are_not_read(client: Client, config: AuthenticationConfig, ca: str) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": NAMESPACE}}
    await client.create(CONFIG_MAP, {**other, "data": {"requestheader-client-ca-file": "bad"}})
    await publish(client, client_ca_file=ca)
    await config.found.wait()
    assert config.problem == ""
