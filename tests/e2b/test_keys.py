from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import SECRET
from sandpool.api.resource import Key
from sandpool.e2b.attempts import Attempts
from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.errors import Refusal
from sandpool.e2b.keys import KEY_NAMESPACE, ApiKey, ApiKeys
from sandpool.engine.cache.store import Cache
from sandpool.kube.errors import NotFound
from sandpool.testing.clock import ManualClock
from sandpool.testing.world import World


async def test_key_is_not_stored_and_stands_for_namespace_and_quota(
    world: World, keys: ApiKeys, endpoint: Endpoint
) -> None:
    key, described = await keys.create("space", "ci", 7)
    assert (described.namespace, described.name, described.max_sandboxes) == ("space", "ci", 7)
    assert await endpoint.authenticator.authenticate(key, "127.0.0.1") == described
    assert await keys.list() == (described,)
    stored = await world.client.list(SECRET, KEY_NAMESPACE)
    assert key not in str(stored) and key.removeprefix("e2b_") not in str(stored)


async def test_revoked_key_is_refused(keys: ApiKeys, endpoint: Endpoint, world: World) -> None:
    key, described = await keys.create("space")
    await endpoint.authenticator.authenticate(key, "127.0.0.1")
    await keys.revoke(described.id)

    async def refused() -> bool:
        try:
            await endpoint.authenticator.authenticate(key, "127.0.0.1")
        except Refusal as error:
            return error.status == 401
        return False

    assert await world.until(refused)
    with pytest.raises(NotFound):
        await keys.revoke(described.id)


@pytest.mark.parametrize(
    "key", [None, "", "e2b_", "e2b_" + "0" * 40, "x" * 10_000, "e2b_\udcff", "e2b_" + "1" * 10_000]
)
async def test_unknown_keys_are_refused(endpoint: Endpoint, key: str | None) -> None:
    with pytest.raises(Refusal) as caught:
        await endpoint.authenticator.authenticate(key, "127.0.0.1")
    assert caught.value.status == 401


async def test_endpoints_share_the_secret_of_tokens(keys: ApiKeys) -> None:
    secret = await keys.secret()
    assert len(secret) == 64
    assert await keys.secret() == secret


async def test_invented_keys_cause_few_reads_and_do_not_keep_others_out(
    keys: ApiKeys, endpoint: Endpoint, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, described = await keys.create("space")
    assert await endpoint.authenticator.authenticate(known, "10.0.0.1") == described

    async def cached() -> bool:
        return endpoint.authenticator._cache.get(Key(KEY_NAMESPACE, f"key-{described.id}")) is not None

    assert await world.until(cached)
    reads = 0
    get = keys.client.get

    async def counted(*arguments: Any, **rest: Any) -> Any:
        nonlocal reads
        reads += 1
        return await get(*arguments, **rest)

    monkeypatch.setattr(keys.client, "get", counted)
    clock = ManualClock()
    monkeypatch.setattr(endpoint.authenticator, "attempts", Attempts(clock))
    statuses = []
    for number in range(1000):
        with pytest.raises(Refusal) as caught:
            await endpoint.authenticator.authenticate(f"e2b_{number:040x}", "10.0.0.1")
        statuses.append(caught.value.status)
    assert (statuses.count(401), statuses.count(429)) == (40, 960)
    assert reads == 40
    assert await endpoint.authenticator.authenticate(known, "10.0.0.1") == described, "it is known"
    with pytest.raises(Refusal, match="not known or was revoked"):
        await endpoint.authenticator.authenticate("e2b_0", "10.0.0.2")
    await clock.advance(1.0)
    with pytest.raises(Refusal, match="not known or was revoked"):
        await endpoint.authenticator.authenticate("e2b_0", "10.0.0.1")


async def test_keys_that_are_found_do_not_count(keys: ApiKeys, endpoint: Endpoint, world: World) -> None:
    """Each is new to the endpoint, which reads it."""
    endpoint.authenticator._cache = Cache(ApiKey.from_object, name="empty")
    for _ in range(100):
        key, described = await keys.create("space")
        assert await endpoint.authenticator.authenticate(key, "10.0.0.1") == described
