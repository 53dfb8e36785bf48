"""The Service of a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.kinds import CONFIG_MAP, POD, SANDBOX, SERVICE
from sandpool.api.labels import ADOPTABLE, SANDBOX_NAME_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Object
from sandpool.controllers.options import ControllerOptions, SandboxOptions
from sandpool.node.simulated import Fate
from sandpool.testing.objects import pod_template
from sandpool.testing.world import World, owner_of
from tests.support.api_objects import owner_reference

TRACKING = {SANDBOX_NAME_HASH: name_hash("box")}
HEADLESS: Object = {"clusterIP": "None", "selector": {"app": "x"}, "ports": [{"port": 9}]}


def with_ports(*ports: Object, sidecar: Object | None = None) -> Object:
    main = {"name": "main", "image": "example.com/image:1", "ports": list(ports)}
    spec: Object = {"containers": [main]}
    if sidecar is not None:
        spec["initContainers"] = [sidecar]
    return pod_template(spec=spec)


async def ready(world: World) -> tuple[str, str, str]:
    return (await world.conditions())["Ready"]


async def ports(world: World) -> list[tuple[Any, ...]]:
    found = (await world.get(SERVICE))["spec"].get("ports") or []
    return [(each["name"], each["protocol"], each["port"], each["targetPort"]) for each in found]


async def test_requested_service_is_created(world: World) -> None:
    world.written()
    box = await world.sandbox(service=True, podTemplate=with_ports({"containerPort": 8080}))
    assert world.written() == ["create pods", "create services", "patch sandboxes/status"]
    service = await world.get(SERVICE)
    assert service["metadata"]["labels"] == TRACKING
    assert service["metadata"]["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    assert {each["manager"] for each in service["metadata"]["managedFields"]} == {"sandbox-controller"}
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", TRACKING)
    assert await ports(world) == [("p-8080-tcp", "TCP", 8080, 8080)]

    status = (await world.get())["status"]
    assert (status["service"], status["serviceFQDN"]) == ("box", f"box.{world.namespace}.svc.cluster.local")
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready; Service Exists")


async def test_service_is_not_created_by_default(world: World) -> None:
    await world.sandbox()
    assert not await world.exists(SERVICE)
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready")
    assert not {"service", "serviceFQDN"} & (await world.get())["status"].keys()


async def test_cluster_domain_is_configurable(world: World) -> None:
    await world.restart(settings=ControllerOptions(sandbox=SandboxOptions(cluster_domain="example.org")))
    await world.sandbox(service=True)
    assert (await world.get())["status"]["serviceFQDN"] == f"box.{world.namespace}.svc.example.org"


async def test_ports_come_from_containers_and_sidecars(world: World) -> None:
    """Ports are sorted and unique per protocol. The first name of a port wins; unnamed ports get one. Ordinary init
    containers add none."""
    declared = (
        {"containerPort": 8080},
        {"containerPort": 53, "protocol": "UDP", "name": "dns"},
        {"containerPort": 53},
        {"containerPort": 443, "name": "web"},
    )
    sidecar = {
        "name": "side",
        "image": "example.com/side:1",
        "restartPolicy": "Always",
        "ports": [{"containerPort": 9090, "name": "web"}, {"containerPort": 8080, "name": "late"}],
    }
    await world.sandbox(service=True, podTemplate=with_ports(*declared, sidecar=sidecar))
    assert await ports(world) == [
        ("p-53-tcp", "TCP", 53, 53),
        ("dns", "UDP", 53, 53),
        ("web", "TCP", 443, 443),
        ("late", "TCP", 8080, 8080),
        ("p-9090-tcp", "TCP", 9090, 9090),
    ]


async def test_ports_follow_the_pod_template(world: World) -> None:
    await world.sandbox(service=True, podTemplate=with_ports({"containerPort": 80}))
    for wanted in ([80, 90], [90], []):
        template = with_ports(*({"containerPort": number} for number in wanted))
        await world.patch(SANDBOX, "box", {"spec": {"podTemplate": template}})
        assert [number for _, _, number, _ in await ports(world)] == wanted


async def test_service_is_deleted_when_it_is_no_longer_requested(world: World) -> None:
    await world.sandbox(service=True)
    world.written()
    await world.patch(SANDBOX, "box", {"spec": {"service": False}})
    assert world.written() == ["delete services", "patch sandboxes/status"]
    assert not await world.exists(SERVICE)
    assert not {"service", "serviceFQDN"} & (await world.get())["status"].keys()
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready")


async def test_service_is_kept_when_the_field_is_unset(world: World) -> None:
    await world.sandbox(service=True)
    await world.patch(SANDBOX, "box", {"spec": {"service": None}})
    assert await world.exists(SERVICE)
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready; Service Exists")
    await world.delete(SERVICE, "box")
    assert not await world.exists(SERVICE)
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready")


async def test_deleted_service_is_created_again(world: World) -> None:
    await world.sandbox(service=True)
    world.written()
    await world.delete(SERVICE, "box")
    assert world.written() == ["create services"]
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready; Service Exists")


async def test_changed_service_is_repaired(world: World) -> None:
    """Label, selector and ports; what we do not decide about stays."""
    await world.sandbox(service=True, podTemplate=with_ports({"containerPort": 80}))
    body: Object = {
        "metadata": {"labels": {SANDBOX_NAME_HASH: "x", "mine": "1"}},
        "spec": {
            "selector": {"app": "y", SANDBOX_NAME_HASH: None},
            "ports": [{"port": 1}],
            "sessionAffinity": "ClientIP",
        },
    }
    await world.patch(SERVICE, "box", body)
    service = await world.get(SERVICE)
    assert service["metadata"]["labels"] == {**TRACKING, "mine": "1"}
    assert service["spec"]["selector"] == TRACKING
    assert service["spec"]["sessionAffinity"] == "ClientIP"
    assert await ports(world) == [("p-80-tcp", "TCP", 80, 80)]


async def test_service_is_kept_and_reconciled_while_suspended(world: World) -> None:
    await world.sandbox(service=True, operatingMode="Suspended")
    assert not await world.exists(POD)
    assert (await world.get())["status"]["service"] == "box"
    await world.patch(SERVICE, "box", {"spec": {"selector": {"app": "y"}}})
    assert (await world.get(SERVICE))["spec"]["selector"] == TRACKING


@pytest.mark.parametrize("label", [{ADOPTABLE: "true"}, TRACKING], ids=["adoptable", "tracking"])
async def test_adoptable_service_is_adopted(world: World, label: dict[str, str]) -> None:
    await world.create(SERVICE, "box", metadata={"labels": label}, spec=HEADLESS)
    box = await world.sandbox(service=True, podTemplate=with_ports({"containerPort": 80}))
    service = await world.get(SERVICE)
    assert service["metadata"]["ownerReferences"] == [owner_reference(box, controller=True, block=True)]
    assert service["metadata"]["labels"] == {**label, **TRACKING}
    assert service["spec"]["selector"] == TRACKING
    assert await ports(world) == [("p-80-tcp", "TCP", 80, 80)]
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready; Service Exists")


async def test_unowned_service_without_the_labels_is_refused(world: World) -> None:
    await world.create(SERVICE, "box", spec=HEADLESS)
    await world.sandbox(service=True)
    assert await ready(world) == (
        "False",
        "ReconcilerError",
        'Error seen: cannot adopt unowned service "box" for sandbox "box": it has no label '
        'agents.x-k8s.io/adoptable="true"',
    )
    assert owner_of(await world.get(SERVICE)) == ("", "")


async def test_service_with_a_cluster_ip_is_refused(world: World) -> None:
    spec = {"selector": {"app": "x"}, "ports": [{"port": 9}]}
    made = await world.create(SERVICE, "box", metadata={"labels": {ADOPTABLE: "true"}}, spec=spec)
    await world.sandbox(service=True)
    assert await ready(world) == (
        "False",
        "ReconcilerError",
        'Error seen: cannot adopt unowned service "box" for sandbox "box": it is not headless '
        f"(clusterIP: {made['spec']['clusterIP']})",
    )


@pytest.mark.parametrize("wanted", [None, False], ids=["unset", "false"])
async def test_unowned_service_is_ignored_unless_requested(world: World, wanted: bool | None) -> None:
    await world.create(SERVICE, "box", metadata={"labels": TRACKING}, spec=HEADLESS)
    await world.sandbox(service=wanted)
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready")
    service = await world.get(SERVICE)
    assert (owner_of(service), service["spec"]["selector"]) == (("", ""), {"app": "x"})
    assert "service" not in (await world.get())["status"]


async def test_foreign_service_is_not_deleted(world: World) -> None:
    owner = await world.create(CONFIG_MAP, "another")
    await world.create(
        SERVICE, "box", metadata={"ownerReferences": [owner_reference(owner, controller=True)]}, spec=HEADLESS
    )
    await world.sandbox(service=False)
    assert await world.exists(SERVICE)
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready")


async def test_sandbox_without_its_requested_service_is_not_ready(world: World) -> None:
    world.node.fate = lambda pod: Fate.HANGING
    await world.sandbox(service=True)
    await world.wait(11)
    assert await ready(world) == (
        "False",
        "DependenciesNotReady",
        "Pod is Running but not Ready; Service Exists",
    )


async def test_failed_service_creation_keeps_the_sandbox_unready(world: World) -> None:
    world.wire.fault = lambda request: ConnectionError("no route") if request.path.endswith("/services") else None
    await world.sandbox(service=True)
    assert await ready(world) == ("False", "ReconcilerError", "Error seen: no route")
    assert await world.exists(POD)
    world.wire.heal()
    await world.wait(10)
    assert await ready(world) == ("True", "DependenciesReady", "Pod is Ready; Service Exists")
