from __future__ import annotations

import base64

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandpool.api.kinds import CONFIG_MAP
from sandpool.api.resource import SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import BadRequest, Expired, Invalid, ServerTimeout
from sandpool.server.api_server import ApiServer
from sandpool.server.registry.read import parse_version
from sandpool.testing.objects import new


async def fill(client: Client, count: int) -> None:
    for number in range(count):
        labels = {"parity": "even" if number % 2 == 0 else "odd"}
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"c{number}", metadata={"labels": labels}), "default")


def names(listed: SharedObject) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


async def test_pages_show_one_revision_despite_concurrent_writes(client: Client) -> None:
    await fill(client, 7)
    page = await client.list(CONFIG_MAP, "default", limit=2)
    version, seen = page["metadata"]["resourceVersion"], list(page["items"])
    assert page["metadata"]["remainingItemCount"] == 5
    step = 0
    while token := page["metadata"].get("continue"):
        # Something before, something behind and something in the middle of where the list is.
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"a{step}"), "default")
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"z{step}"), "default")
        await client.patch(CONFIG_MAP, "c6", MergePatch({"data": {"changed": str(step)}}), "default")
        await client.delete(CONFIG_MAP, f"c{5 - step}", "default")
        step += 1
        page = await client.list(CONFIG_MAP, "default", limit=2, continue_token=token)
        assert page["metadata"]["resourceVersion"] == version
        seen += page["items"]
    assert [item["metadata"]["name"] for item in seen] == [f"c{number}" for number in range(7)]
    assert not any("data" in item for item in seen)


async def test_pages_of_a_selection_have_no_remaining_count(client: Client) -> None:
    await fill(client, 5)
    page = await client.list(CONFIG_MAP, "default", label_selector="parity=even", limit=2)
    assert names(page) == ["c0", "c2"]
    assert "remainingItemCount" not in page["metadata"]
    token = page["metadata"]["continue"]
    rest = await client.list(CONFIG_MAP, "default", label_selector="parity=even", limit=2, continue_token=token)
    assert names(rest) == ["c4"]
    assert "continue" not in rest["metadata"]


async def test_last_page_has_no_continue_token(client: Client) -> None:
    await fill(client, 4)
    page = await client.list(CONFIG_MAP, "default", limit=4)
    assert len(page["items"]) == 4
    assert "continue" not in page["metadata"]


async def test_expired_token_comes_with_one_for_the_current_revision(server: ApiServer, client: Client) -> None:
    await fill(client, 4)
    page = await client.list(CONFIG_MAP, "default", limit=2)
    await client.create(CONFIG_MAP, new(CONFIG_MAP, "c22"), "default")
    server.store.compact("configmaps")
    with pytest.raises(Expired) as expired:
        await client.list(CONFIG_MAP, "default", limit=2, continue_token=page["metadata"]["continue"])
    token = expired.value.list_metadata["continue"]
    rest = await client.list(CONFIG_MAP, "default", limit=2, continue_token=token)
    assert names(rest) == ["c2", "c22"]
    assert rest["metadata"]["resourceVersion"] == str(server.store.revision)
    last = await client.list(CONFIG_MAP, "default", limit=2, continue_token=rest["metadata"]["continue"])
    assert names(last) == ["c3"]


async def test_list_at_an_exact_revision_is_served(client: Client, server: ApiServer) -> None:
    await fill(client, 2)
    then = str(server.store.revision)
    await client.delete(CONFIG_MAP, "c0", "default")
    exact = await client.list(CONFIG_MAP, "default", resource_version=then, resource_version_match="Exact")
    assert names(exact) == ["c0", "c1"]
    assert exact["metadata"]["resourceVersion"] == then
    newer = await client.list(CONFIG_MAP, "default", resource_version=then, resource_version_match="NotOlderThan")
    assert names(newer) == ["c1"]
    server.store.compact("configmaps")
    with pytest.raises(Expired, match="too old"):
        await client.list(CONFIG_MAP, "default", resource_version=then, resource_version_match="Exact")


async def test_list_at_a_future_revision_waits(client: Client, server: ApiServer) -> None:
    future = server.store.revision + 1
    with pytest.raises(ServerTimeout, match=f"Too large resource version: {future}") as refused:
        await client.list(CONFIG_MAP, resource_version=str(future))
    assert refused.value.retry_after == 1


@pytest.mark.parametrize("text", ["x", "-1", "1.0", " 1", "٣", "9" * 21, "9" * 5000])
def test_malformed_revision_is_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        parse_version(text)


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"[]",
        b"null",
        orjson.dumps({"v": "meta.k8s.io/v2", "rv": 1, "start": ["a", "b"]}),
        orjson.dumps({"v": "meta.k8s.io/v1", "rv": "1", "start": ["a", "b"]}),
        orjson.dumps({"v": "meta.k8s.io/v1", "rv": 1, "start": ["a"]}),
        orjson.dumps({"v": "meta.k8s.io/v1", "rv": 1}),
    ],
)
async def test_foreign_continue_token_is_rejected(client: Client, content: bytes) -> None:
    token = base64.urlsafe_b64encode(content).decode()
    with pytest.raises(BadRequest, match="continue key is not valid"):
        await client.list(CONFIG_MAP, continue_token=token)


writes = st.lists(st.sampled_from(["a", "ab", "b", "b-1", "b1", "c"]), max_size=6)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(writes, min_size=1, max_size=5), limit=st.integers(1, 3))
async def test_pages_equal_the_list_of_their_first_revision(
    client: Client, rounds: list[list[str]], limit: int
) -> None:
    """Between any two pages anything may come and go: names toggle between being there and not."""
    present = set(names(await client.list(CONFIG_MAP, "default")))
    expected = sorted(present)
    page = await client.list(CONFIG_MAP, "default", limit=limit)
    seen = names(page)
    for toggles in [*rounds, *([[]] * 10)]:
        for name in toggles:
            if name in present:
                present.remove(name)
                await client.delete(CONFIG_MAP, name, "default")
            else:
                present.add(name)
                await client.create(CONFIG_MAP, new(CONFIG_MAP, name), "default")
        if token := page["metadata"].get("continue"):
            page = await client.list(CONFIG_MAP, "default", limit=limit, continue_token=token)
            seen += names(page)
    assert seen == expected
