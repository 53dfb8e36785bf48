"""Lists in pages: limit and continue."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from sandpool.api.kinds import SECRET
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import BadRequest, Expired
from sandpool.testing.objects import new
from tests.support.api_access import ApiEndpoint, Raw


async def fill(client: Client, namespace: str, count: int) -> list[str]:
    names = [f"s{number:02}" for number in range(count)]
    for name in names:
        await client.create(SECRET, new(SECRET, name, metadata={"labels": {"odd": str(int(name[1:]) % 2)}}), namespace)
    return names


def names(listed: SharedObject) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def token(listed: SharedObject) -> str | None:
    found: str | None = listed["metadata"].get("continue")
    return found


async def test_list_continues_in_pages(client: Client, namespace: str) -> None:
    expected = await fill(client, namespace, 7)
    first = await client.list(SECRET, namespace, limit=3)
    second = await client.list(SECRET, namespace, limit=3, continue_token=token(first))
    third = await client.list(SECRET, namespace, limit=3, continue_token=token(second))
    assert [names(page) for page in (first, second, third)] == [expected[:3], expected[3:6], expected[6:]]
    assert [page["metadata"].get("remainingItemCount") for page in (first, second, third)] == [4, 1, None]
    assert token(third) is None
    assert len({page["metadata"]["resourceVersion"] for page in (first, second, third)}) == 1


async def test_list_below_the_limit_has_no_continue_token(client: Client, namespace: str) -> None:
    expected = await fill(client, namespace, 2)
    for limit in (2, 3, 500):
        listed = await client.list(SECRET, namespace, limit=limit)
        assert names(listed) == expected
        assert not {"continue", "remainingItemCount"} & listed["metadata"].keys()


async def test_pages_show_the_version_of_the_first(client: Client, namespace: str) -> None:
    expected = await fill(client, namespace, 4)
    first = await client.list(SECRET, namespace, limit=2)
    await client.delete(SECRET, "s02", namespace)
    await client.create(SECRET, new(SECRET, "s025"), namespace)
    await client.patch(SECRET, "s03", MergePatch({"metadata": {"labels": {"new": "1"}}}), namespace)
    second = await client.list(SECRET, namespace, limit=5, continue_token=token(first))
    assert names(second) == expected[2:]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "new" not in second["items"][1]["metadata"]["labels"]


async def test_page_size_can_change(client: Client, namespace: str) -> None:
    expected = await fill(client, namespace, 5)
    first = await client.list(SECRET, namespace, limit=1)
    rest = await client.list(SECRET, namespace, continue_token=token(first))
    assert names(first) + names(rest) == expected


async def test_pages_honour_a_selector(client: Client, namespace: str) -> None:
    expected = await fill(client, namespace, 7)
    first = await client.list(SECRET, namespace, limit=2, label_selector="odd=1")
    assert names(first) == [expected[1], expected[3]]
    assert "remainingItemCount" not in first["metadata"]
    rest = await client.list(SECRET, namespace, limit=2, label_selector="odd=1", continue_token=token(first))
    assert names(rest) == [expected[5]]
    assert token(rest) is None


async def test_pages_span_namespaces(client: Client, namespace: str) -> None:
    await fill(client, namespace, 3)
    seen: list[str] = []
    listed = await client.list(SECRET, limit=2)
    seen += [item["metadata"]["namespace"] for item in listed["items"]]
    while token(listed):
        listed = await client.list(SECRET, limit=50, continue_token=token(listed))
        seen += [item["metadata"]["namespace"] for item in listed["items"]]
    assert seen.count(namespace) == 3


async def test_custom_kind_is_listed_in_pages(client: Client, namespace: str, widgets: ResourceType) -> None:
    for name in "abc":
        await client.create(widgets, new(widgets, name, spec={}), namespace)
    first = await client.list(widgets, namespace, limit=2)
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 1)
    assert names(await client.list(widgets, namespace, limit=2, continue_token=token(first))) == ["c"]


@pytest.mark.parametrize("bad", ["nonsense", "e30", "bm90IGpzb24", "!!!!"])
async def test_invalid_continue_token_is_rejected(client: Client, namespace: str, bad: str) -> None:
    with pytest.raises(BadRequest, match=r"continue key is not valid"):
        await client.list(SECRET, namespace, limit=2, continue_token=bad)


async def test_continue_token_with_a_resource_version_is_rejected(client: Client, namespace: str) -> None:
    await fill(client, namespace, 3)
    first = await client.list(SECRET, namespace, limit=1)
    with pytest.raises(BadRequest, match=r"specifying resource version is not allowed when using continue"):
        await client.list(SECRET, namespace, limit=1, continue_token=token(first), resource_version="5")


@pytest.mark.parametrize("limit", ["-1", "x", "1.5"])
async def test_invalid_limit_does_not_fail_the_server(raw: Raw, namespace: str, limit: str) -> None:
    answer = await raw("GET", SECRET.path(namespace) + f"?limit={limit}")
    assert answer.status in (200, 400)


async def test_expired_continue_token_answers_a_new_one(
    api: ApiEndpoint, raw: Raw, client: Client, namespace: str
) -> None:
    """The answer carries a token for going on with what is there now, at the price of consistency."""
    expected = await fill(client, namespace, 4)
    first = await client.list(SECRET, namespace, limit=2)
    await client.create(SECRET, new(SECRET, "s99"), namespace)
    await api.forget_history()
    with pytest.raises(Expired):
        await client.list(SECRET, namespace, limit=2, continue_token=token(first))
    answer = await raw("GET", SECRET.path(namespace) + f"?limit=2&continue={quote(token(first) or '')}")
    status = answer.json()
    assert (answer.status, status["code"], status["reason"]) == (410, 410, "Expired")
    assert status["message"] == (
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )
    rest = await client.list(SECRET, namespace, continue_token=token(status))
    assert names(rest) == [*expected[2:], "s99"]
