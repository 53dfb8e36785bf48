"""The control plane of the embedded router with a data plane in the same process; nothing runs in the pods."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import pytest
from yarl import URL

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import POD, SANDBOX, SERVICE
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.views import PodView
from sandpool.engine.clock import SystemClock
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import Invalid, NotFound
from sandpool.kube.pod_access import LogQuery, PodAccessError
from sandpool.router.data_plane import LocalDataPlane
from sandpool.router.dialer import NodeDialer
from sandpool.router.embedded import EmbeddedRouter
from sandpool.router.gateway_api import GATEWAY, GATEWAY_CLASS, HTTP_ROUTE
from sandpool.router.registration import NAMESPACES, POD_NAME, PORT, SERVICE_NAME, RouterRegistration
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock
from sandpool.testing.objects import new, pod, pod_template
from sandpool.testing.waiting import until
from tests.support.api_objects import owner_reference

ADMINISTRATOR = {"username": "admin", "groups": ["system:masters"]}


@asynccontextmanager
async def routed(server: ApiServer) -> AsyncIterator[EmbeddedRouter]:
    client, clock = server.client(name="router"), SystemClock()
    plane = LocalDataPlane(client, NodeDialer(None), clock, Random(0), MetricsRegistry())
    router = EmbeddedRouter(client, plane, clock, Random(0))
    await router.start("127.0.0.1", 0)
    try:
        yield router
    finally:
        await router.stop(0)


async def health(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    with sock:
        await loop.sock_sendall(sock, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := await loop.sock_recv(sock, 1 << 16):
            answer += data
    return answer


class TestRegistration:
    @pytest.mark.parametrize("namespace", NAMESPACES)
    async def test_service_has_a_ready_pod(self, server: ApiServer, namespace: str) -> None:
        client = server.client()
        async with routed(server):
            service = await client.get(SERVICE, SERVICE_NAME, namespace)
            assert [port["port"] for port in service["spec"]["ports"]] == [PORT]
            selector = ",".join(f"{name}={value}" for name, value in service["spec"]["selector"].items())
            (found,) = (await client.list(POD, namespace, label_selector=selector))["items"]
            assert found["status"]["phase"] == "Running"
            ready = condition_of(found, "Ready")
            assert ready is not None and ready["status"] == "True"

    async def test_pod_is_deleted_on_stop(self, server: ApiServer) -> None:
        client = server.client()
        async with routed(server):
            pass
        for namespace in NAMESPACES:
            with pytest.raises(NotFound):
                await client.get(POD, POD_NAME, namespace)

    async def test_objects_of_an_earlier_process_are_replaced(self, server: ApiServer) -> None:
        client = server.client()
        async with routed(server) as first:
            before = set(first.registration.uids)
            async with routed(server) as second:
                assert not second.registration.uids & before
                found = await client.get(POD, POD_NAME, "default")
                assert found["metadata"]["uid"] in second.registration.uids

    @pytest.mark.parametrize("grace", [0, None], ids=["at once", "with grace, for a node that is not there"])
    async def test_deleted_pod_is_recreated(self, server: ApiServer, grace: int | None) -> None:
        client = server.client()
        async with routed(server) as router:
            before = await client.get(POD, POD_NAME, "default")
            await client.delete(POD, POD_NAME, "default", grace_period_seconds=grace)

            async def again() -> SharedObject | None:
                try:
                    found = await client.get(POD, POD_NAME, "default")
                except NotFound:
                    return None
                ready = condition_of(found, "Ready")
                is_new = found["metadata"]["uid"] != before["metadata"]["uid"]
                return found if is_new and ready is not None and ready["status"] == "True" else None

            found = await until(again)
            assert found is not None
            assert (await health(await router.pod_access(None).dial(found, PORT, ADMINISTRATOR))).endswith(
                b'{"status":"ok"}'
            )

    async def test_pod_of_a_successor_is_kept(self, server: ApiServer) -> None:
        clock = ManualClock()
        presence = RouterRegistration(server.client(name="router"), clock, ("default",))
        await presence.register()
        keeping = asyncio.create_task(presence.run())
        client = server.client()
        mine = PodView.from_object(await client.get(POD, POD_NAME, "default"))
        await client.delete(POD, POD_NAME, "default", grace_period_seconds=0)
        other = await client.create(POD, pod(POD_NAME), "default")
        presence.pod_changed(Key("default", POD_NAME), mine, None)
        await clock.advance(60)
        assert (await client.get(POD, POD_NAME, "default"))["metadata"]["uid"] == other["metadata"]["uid"]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


class TestPodAccess:
    async def test_port_of_the_pod_reaches_the_router(self, server: ApiServer) -> None:
        async with routed(server) as router:
            found = await server.client().get(POD, POD_NAME, "default")
            assert (await health(await router.pod_access(None).dial(found, PORT, ADMINISTRATOR))).endswith(
                b'{"status":"ok"}'
            )

    async def test_other_ports_are_refused(self, server: ApiServer) -> None:
        async with routed(server) as router:
            found = await server.client().get(POD, POD_NAME, "default")
            with pytest.raises(ConnectionRefusedError):
                await router.pod_access(None).dial(found, 22, ADMINISTRATOR)

    async def test_other_subresources_are_refused(self, server: ApiServer) -> None:
        async with routed(server) as router:
            found = await server.client().get(POD, POD_NAME, "default")
            with pytest.raises(PodAccessError, match="is the router"):
                router.pod_access(None).logs(found, LogQuery("router"))

    async def test_pod_without_a_node_is_unreachable(self, server: ApiServer) -> None:
        client = server.client()
        async with routed(server) as router:
            made = await client.create(POD, pod("other"), "default")
            with pytest.raises(PodAccessError, match="no node of this server runs it"):
                await router.pod_access(None).dial(made, 80, ADMINISTRATOR)


async def test_sandbox_on_a_simulated_node_is_unreachable(server: ApiServer) -> None:
    client = server.client()
    async with routed(server) as router, aiohttp.ClientSession(router.url) as session:
        box = await client.create(SANDBOX, new(SANDBOX, "box", spec={"podTemplate": pod_template()}), "default")
        owned = pod("box")
        owned["metadata"]["ownerReferences"] = [owner_reference(box, controller=True)]
        await client.create(POD, owned, "default")
        ready: Object = {
            "phase": "Running",
            "podIPs": [{"ip": "10.1.0.1"}],
            "podIP": "10.1.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await client.patch(POD, "box", MergePatch({"status": ready}), "default", subresource="status")

        async def answer() -> tuple[int, Any]:
            async with session.get("/", headers={"X-Sandbox-ID": "box"}) as response:
                return response.status, (await response.json())["detail"]

        async def seen() -> bool:
            return "simulated or gone" in (await answer())[1]

        await until(seen)
        assert (await answer())[0] == 503


class GatewayTests:
    def gateway(self, port: int, class_name: str = "sandpool", protocol: str = "HTTP") -> Object:
        listeners = [{"name": "http", "port": port, "protocol": protocol}]
        return new(GATEWAY, "gateway", spec={"gatewayClassName": class_name, "listeners": listeners})

    async def made(self, client: Client, gateway: Object) -> None:
        async def create() -> bool:
            try:
                await client.create(GATEWAY, gateway, "default")
            except NotFound:
                return False  # the kinds are being installed
            return True

        await until(create)

    async def programmed(self, client: Client, status: str) -> SharedObject:
        async def told() -> SharedObject | None:
            found = await client.get(GATEWAY, "gateway", "default")
            condition = condition_of(found, "Programmed")
            return found if condition is not None and condition["status"] == status else None

        found = await until(told)
        assert found is not None
        return found


class TestGateways(GatewayTests):
    async def test_gateway_address_reaches_the_router(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        async with routed(server):
            await self.made(client, self.gateway(port))
            found = await self.programmed(client, "True")
            (address,) = found["status"]["addresses"]
            sock = socket.create_connection((address["value"], port), timeout=10)
            sock.setblocking(False)
            assert (await health(sock)).endswith(b'{"status":"ok"}')

    async def test_deleted_gateway_stops_listening(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        async with routed(server) as router:
            await self.made(client, self.gateway(port))
            await self.programmed(client, "True")
            await client.delete(GATEWAY, "gateway", "default")

            async def closed() -> bool:
                return port not in router.gateways.ports

            await until(closed)

    async def test_taken_port_is_reported_in_the_status(self, server: ApiServer) -> None:
        client = server.client()
        with socket.create_server(("127.0.0.77", 0)) as other:
            async with routed(server):
                await self.made(client, self.gateway(other.getsockname()[1]))
                found = await self.programmed(client, "False")
                condition = condition_of(found, "Programmed")
                assert condition is not None and "cannot listen on 127.0.0.77" in condition["message"]
                assert not found["status"].get("addresses")

    async def test_gateways_of_other_controllers_are_ignored(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        async with routed(server) as router:
            await self.made(client, self.gateway(port, "istio"))
            await client.create(GATEWAY, self.gateway(port) | {"metadata": {"name": "ours"}}, "default")

            async def told() -> bool:
                return bool((await client.get(GATEWAY, "ours", "default")).get("status"))

            await until(told)
            assert "status" not in await client.get(GATEWAY, "gateway", "default")
            assert router.gateways.ports == [port]

    async def test_gateway_api_kinds_are_served(self, server: ApiServer) -> None:
        client = server.client()
        async with routed(server):
            await self.made(client, self.gateway(_free_port()))
            await self.programmed(client, "True")
            assert (await client.get(GATEWAY_CLASS, "sandpool"))["spec"]["controllerName"] == "sandpool.dev/router"
            route = new(HTTP_ROUTE, "route", spec={"parentRefs": [{"name": "gateway"}], "rules": [{"matches": []}]})
            kept = await client.create(HTTP_ROUTE, route, "default")
            assert kept["spec"] == route["spec"]
            with pytest.raises(Invalid):
                await client.create(GATEWAY, new(GATEWAY, "wrong", spec={"listeners": []}), "default")


class TestRoutes(GatewayTests):
    """With a Gateway called "gateway"."""

    def route(self, name: str, prefix: str, backend: str = SERVICE_NAME) -> Object:
        rule = {
            "matches": [{"path": {"type": "PathPrefix", "value": prefix}}],
            "backendRefs": [{"name": backend, "port": PORT}],
        }
        return new(HTTP_ROUTE, name, spec={"parentRefs": [{"name": "gateway"}], "rules": [rule]})

    async def told(self, client: Client, name: str) -> dict[str, tuple[str, str]]:
        """Return the conditions of a route, once there are any."""

        async def parents() -> list[Object]:
            found = await client.get(HTTP_ROUTE, name, "default")
            return (found.get("status") or {}).get("parents") or []

        (parent,) = await until(parents)
        assert (parent["parentRef"], parent["controllerName"]) == ({"name": "gateway"}, "sandpool.dev/router")
        return {each["type"]: (each["status"], each["reason"]) for each in parent["conditions"]}

    async def detail(self, port: int, path: str, status: int = 404) -> str:
        url = URL(f"http://127.0.0.77:{port}{path}", encoded=True)
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers={"X-Sandbox-ID": "none"}) as answer,
        ):
            assert answer.status == status
            text: str = (await answer.json())["detail"]
            return text

    async def test_route_admits_matching_requests_only(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        no_route = "No HTTPRoute of the Gateway matches the request."
        no_sandbox = "Sandbox none not found in namespace default."
        async with routed(server):
            await self.made(client, self.gateway(port))
            await self.programmed(client, "True")
            assert await self.detail(port, "/b") == no_sandbox  # no routes: everything
            await client.create(HTTP_ROUTE, self.route("one", "/a"), "default")
            accepted = {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}
            assert await self.told(client, "one") == accepted
            assert [await self.detail(port, path) for path in ("/a/1", "/b")] == [no_sandbox, no_route]
            patch = MergePatch({"spec": self.route("one", "/b")["spec"]})
            await client.patch(HTTP_ROUTE, "one", patch, "default")

            async def turned() -> bool:
                return await self.detail(port, "/b") == no_sandbox

            await until(turned)
            assert await self.detail(port, "/a/1") == no_route
            await client.delete(HTTP_ROUTE, "one", "default")

            async def open_again() -> bool:
                return await self.detail(port, "/a") == no_sandbox

            await until(open_again)

    async def test_route_cannot_be_bypassed(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        async with routed(server):
            await self.made(client, self.gateway(port))
            await self.programmed(client, "True")
            no_sandbox = "Sandbox none not found in namespace default."
            assert await self.detail(port, "/a/../b") == no_sandbox  # there is nothing to get around
            await client.create(HTTP_ROUTE, self.route("one", "/a"), "default")
            await self.told(client, "one")
            for path in ("/a/../b", "/a/%2e%2e/b", "/a/..%2Fb"):
                assert "can be read as another one" in await self.detail(port, path, 400)
            assert await self.detail(port, "//a") == "No HTTPRoute of the Gateway matches the request."
            assert await self.detail(port, "/%61/1?of=../b") == no_sandbox

    async def test_route_to_another_backend_is_reported_and_not_served(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        async with routed(server):
            await self.made(client, self.gateway(port))
            await self.programmed(client, "True")
            await client.create(HTTP_ROUTE, self.route("one", "/", "kubernetes"), "default")
            told = {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("False", "BackendNotFound")}
            assert await self.told(client, "one") == told
            assert await self.detail(port, "/") == "No HTTPRoute of the Gateway matches the request."

    async def test_route_created_before_its_gateway_is_served(self, server: ApiServer) -> None:
        client, port = server.client(), _free_port()
        async with routed(server):

            async def create() -> bool:
                try:
                    await client.create(HTTP_ROUTE, self.route("one", "/"), "default")
                except NotFound:
                    return False  # the kinds are being installed
                return True

            await until(create)
            await self.made(client, self.gateway(port))
            assert (await self.told(client, "one"))["Accepted"] == ("True", "Accepted")


def _free_port() -> int:
    with socket.create_server(("127.0.0.77", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port
