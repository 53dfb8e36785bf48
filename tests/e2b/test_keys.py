from __future__ import annotations

import pytest

from sandpool.api.kinds import SECRET
from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.errors import Refusal
from sandpool.e2b.keys import KEY_NAMESPACE, ApiKeys
from sandpool.kube.errors import NotFound
from sandpool.testing.world import World


async def test_key_is_not_stored_and_stands_for_namespace_and_quota(
    world: World, keys: ApiKeys, endpoint: Endpoint
) -> None:
    key, described = await keys.create("space", "ci", 7)
    assert (described.namespace, described.name, described.max_sandboxes) == ("space", "ci", 7)
    assert await endpoint.authenticator.authenticate(key) == described
    assert await keys.list() == (described,)
    stored = await world.client.list(SECRET, KEY_NAMESPACE)
    assert key not in str(stored) and key.removeprefix("e2b_") not in str(stored)


async def test_revoked_key_is_refused(keys: ApiKeys, endpoint: Endpoint, world: World) -> None:
    key, described = await keys.create("space")
    await endpoint.authenticator.authenticate(key)
    await keys.revoke(described.id)

    async def refused() -> bool:
        try:
            await endpoint.authenticator.authenticate(key)
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
        await endpoint.authenticator.authenticate(key)
    assert caught.value.status == 401


async def test_endpoints_share_the_secret_of_tokens(keys: ApiKeys) -> None:
    secret = await keys.secret()
    assert len(secret) == 64
    assert await keys.secret() == secret
