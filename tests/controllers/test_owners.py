"""Nothing is made a second time for what is gone."""

from __future__ import annotations

from pathlib import Path

from sandpool.api.kinds import SANDBOX_TEMPLATE
from sandpool.api.views import TemplateView
from sandpool.controllers.caches import Caches, key_of
from sandpool.controllers.owners import Owners
from sandpool.controllers.perform import Performer
from sandpool.kube.client import Client
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new
from sandpool.testing.sandboxes import pod_template
from sandpool.testing.wire import Wire

NAMESPACE = "default"


async def made(client: Client) -> TemplateView:
    body = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    return TemplateView.from_object(await client.create(SANDBOX_TEMPLATE, body, NAMESPACE))


async def test_the_api_is_asked_before_something_is_made_a_second_time(tmp_path: Path) -> None:
    server = ApiServer(tmp_path)
    await server.start()
    people, wire, caches = server.client(), Wire(server.client().transport), Caches()
    owners = Owners(SANDBOX_TEMPLATE, Performer(Client(wire), caches))
    first = await made(people)
    caches.templates.observe(await people.get(SANDBOX_TEMPLATE, "python", NAMESPACE))

    assert await owners.is_there(first)
    assert wire.requests == [], "the first time costs nothing"
    assert await owners.is_there(first)
    assert len(wire.requests) == 1

    await people.delete(SANDBOX_TEMPLATE, "python", NAMESPACE)
    assert not await owners.is_there(first)
    assert key_of(first) not in caches.templates

    second = await made(people)
    assert not await owners.is_there(first), "that is another one"
    assert await owners.is_there(second)
    owners.forget(key_of(second))
    asked = len(wire.requests)
    assert await owners.is_there(second)
    assert len(wire.requests) == asked
    await server.stop()
