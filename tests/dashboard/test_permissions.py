"""The role in docs/dashboard.md is that of the dashboard of a home, and is enough for its pages and buttons."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from sandpool.api.kinds import CLUSTER_ROLE, SANDBOX_CLAIM, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.dashboard.guard import SESSION_HEADER, GuardOptions
from sandpool.dashboard.role import role_rules
from sandpool.dashboard.target import DashboardTarget
from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.testing.world import World
from tests.dashboard.conftest import Served, next_event, serving
from tests.support.browser import Browser
from tests.support.documented_role import account_with, documented_rules, grant
from tests.support.fake_pod_client import FakePodClient

# Ends the rules that a read-only dashboard needs.
CHANGES = "# changes"


def granted(rules: Iterable[Object]) -> set[tuple[str, str, str]]:
    """Groups, resources and verbs."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(("until", "read_only"), [("```", False), (CHANGES, True)])
def test_documented_role_is_that_of_a_home(until: str, read_only: bool) -> None:
    assert granted(documented_rules("dashboard.md", until=until)) == granted(role_rules(read_only=read_only))


@pytest_asyncio.fixture
async def account(world: World) -> Client:
    """A client that has the role in the documentation and no other one."""
    return await account_with(world, "dashboard-account", documented_rules("dashboard.md"))


@pytest_asyncio.fixture
async def reader(world: World) -> Client:
    """A client that has the rules for a read-only dashboard."""
    return await account_with(world, "reading-account", documented_rules("dashboard.md", until=CHANGES))


@pytest_asyncio.fixture
async def without_claims(world: World) -> Client:
    """A client that may read everything but claims."""
    rules = documented_rules("dashboard.md", until=CHANGES)
    for rule in rules:
        rule["resources"] = [each for each in rule["resources"] if each != SANDBOX_CLAIM.plural]
    return await account_with(world, "without-claims", rules)


@pytest_asyncio.fixture
async def partial(world: World, without_claims: Client, pods: FakePodClient) -> AsyncIterator[Served]:
    async with serving(world, DashboardTarget(without_claims, pods, "in part")) as made:
        yield made


@pytest_asyncio.fixture
async def served(world: World, account: Client, pods: FakePodClient) -> AsyncIterator[Served]:
    async with serving(world, DashboardTarget(account, pods, "with a role")) as made:
        yield made


@pytest_asyncio.fixture
async def read_only(world: World, reader: Client, pods: FakePodClient) -> AsyncIterator[Served]:
    async with serving(world, DashboardTarget(reader, pods, "look only"), GuardOptions(read_only=True)) as made:
        yield made


async def filled(world: World) -> None:
    await world.template()
    await world.pool(replicas=1)
    await world.filled(1)


async def test_documented_role_is_enough_for_every_button(world: World, served: Served) -> None:
    await filled(world)
    async with served.client() as visitor:
        claim = {"namespace": world.namespace, "pool": "pool", "name": "mine", "minutes": 5}
        sandbox = (await visitor.does("POST", "/api/claims", claim))["sandbox"]
        path, pool = f"/api/sandboxes/{world.namespace}/{sandbox}", f"/api/pools/{world.namespace}/pool"
        done = await visitor.does("POST", f"{path}/run", {"language": "sh", "code": "echo $((6 * 7))"})
        assert done["stdout"] == "42\n"
        await visitor.does("POST", f"{pool}/scale", {"replicas": 2})
        await visitor.does("POST", f"{pool}/rollout", {"cpu": "150m", "strategy": "Recreate"})
        await visitor.does("POST", f"{pool}/undo")
        await visitor.does("POST", f"{path}/mode", {"suspended": True})
        await visitor.does("POST", f"{path}/mode", {"suspended": False})
        uid = (await world.get(SANDBOX_CLAIM, "mine"))["metadata"]["uid"]
        await visitor.does("DELETE", f"/api/claims/{world.namespace}/mine", {"uid": uid})
    assert served.dashboard.board.unseen == {}


async def test_first_rules_are_enough_for_every_explanation(world: World, read_only: Served) -> None:
    await filled(world)
    await world.claim("mine")
    await world.served(1)
    async with read_only.client() as visitor:
        for kind, name in (("claim", "mine"), ("pool", "pool"), ("template", "python")):
            assert (await visitor.get(f"/api/why/{kind}/{world.namespace}/{name}"))["unknown"] == []
    assert read_only.dashboard.board.unseen == {}


async def test_role_does_not_allow_what_the_dashboard_does_not_do(world: World, account: Client) -> None:
    await filled(world)
    with pytest.raises(Forbidden):
        await account.delete(SANDBOX_WARM_POOL, "pool", world.namespace)
    with pytest.raises(Forbidden):
        await account.list(CLUSTER_ROLE)


async def test_kind_that_may_not_be_read_leaves_the_others(world: World, partial: Served) -> None:
    await filled(world)
    board = partial.dashboard.board
    await world.eventually(lambda: len(board.caches["pools"]) == 1)
    async with partial.client() as visitor:
        headers = {"Origin": partial.url, SESSION_HEADER: visitor.secret}
        async with visitor.session.get(f"{partial.url}/api/live", headers=headers) as live:
            told = await next_event(live, "rows")
            assert list(told["rows"]["pools"]) == [f"{world.namespace}/pool"]
            assert list(told["unseen"]) == ["claims"]
            assert 'User "without-claims" cannot list resource "sandboxclaims"' in told["unseen"]["claims"]
            assert board.age() < 60

            claims = {"apiGroups": [SANDBOX_CLAIM.group], "resources": [SANDBOX_CLAIM.plural]}
            await grant(world, "without-claims", "claims-too", [{**claims, "verbs": ["list", "watch"]}])
            while (told := await next_event(live, "rows")).get("unseen") != {}:
                continue


async def test_page_says_what_may_not_be_read(browser: Browser, world: World, partial: Served) -> None:
    await filled(world)
    page = await browser.page()
    await page.goto(partial.login_url())
    await page.wait("document.querySelector('.page-header')")
    await page.goto(f"{partial.url}/pools")
    await page.wait("document.querySelector('table')?.textContent.includes('pool')")
    told = await page.evaluate("document.querySelector('.notice').textContent")
    assert told.startswith("These cannot be read: claims.")
    assert 'cannot list resource "sandboxclaims"' in told
    assert page.problems == []
