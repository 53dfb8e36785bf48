from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
import pytest_asyncio

from sandpool.api.conditions import READY, find_condition
from sandpool.api.kinds import NAMESPACE, POD, SANDBOX, SANDBOX_CLAIM, SECRET
from sandpool.api.resource import Object
from sandpool.e2b.claims import KEY_LABEL, ClaimCache, SandboxClaim
from sandpool.e2b.endpoint import Endpoint
from sandpool.e2b.keys import ApiKeys
from sandpool.engine.clock import SystemClock
from sandpool.service.claims import Claim
from sandpool.service.sandboxes import Sandbox
from sandpool.testing.world import World
from tests.e2b.conftest import Answer, Api, Guest, Tenant


async def test_sandbox_is_claimed_described_and_killed(world: World, tenant: Tenant) -> None:
    guest = await tenant.create(metadata={"who": "me"}, timeout=60)
    (claim,) = await world.all(SANDBOX_CLAIM)
    assert claim["metadata"]["name"] == guest.id
    assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    left = datetime.fromisoformat(claim["spec"]["lifecycle"]["shutdownTime"]) - datetime.now(UTC)
    assert timedelta(seconds=30) < left < timedelta(seconds=61)
    info = (await tenant("GET", f"/sandboxes/{guest.id}")).document
    assert (info["sandboxID"], info["state"], info["metadata"]) == (guest.id, "running", {"who": "me"})
    assert info["envdAccessToken"] == guest.token
    assert [each["sandboxID"] for each in (await tenant("GET", "/v2/sandboxes")).document] == [guest.id]
    assert (await tenant("DELETE", f"/sandboxes/{guest.id}")).status == 204
    assert await world.all(SANDBOX_CLAIM) == []
    assert (await tenant("DELETE", f"/sandboxes/{guest.id}")).status == 404
    assert (await tenant("GET", "/v2/sandboxes")).document == []
    assert (await guest.call("process.Process/List")).document == {
        "code": 502,
        "message": f"the sandbox {guest.id} was not found",
    }


async def test_tenants_never_see_each_others_sandboxes(tenant: Tenant, other: Tenant) -> None:
    guest = await tenant.create(metadata={"a": "b"})
    foreign = await other.create()
    assert [each["sandboxID"] for each in (await other("GET", "/v2/sandboxes")).document] == [foreign.id]
    absent = (await other("GET", "/sandboxes/inone")).document["message"].replace("inone", guest.id)
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/connect", {}),
        ("POST", "/timeout", {"timeout": 1}),
        ("POST", "/refreshes", {"duration": 1000}),
        ("POST", "/pause", {"memory": False}),
        ("GET", "/metrics", None),
    ):
        answer = await other(method, f"/sandboxes/{guest.id}{path}", body)
        assert (answer.status, answer.document["message"]) == (404, absent), (method, path)
    # The token of one sandbox opens no other one, and an API key opens none.
    for headers in (
        {"E2b-Sandbox-Id": guest.id, "X-Access-Token": foreign.token},
        {"E2b-Sandbox-Id": guest.id, "X-Access-Token": guest.traffic_token},
        {"E2b-Sandbox-Id": guest.id, **tenant.headers},
        {"E2b-Sandbox-Id": guest.id},
    ):
        for method, path in (("POST", "/process.Process/List"), ("GET", "/files?path=x"), ("POST", "/files?path=x")):
            refused = await tenant.api.request(method, path, {**headers, "Content-Type": "application/json"})
            assert refused.status == 401, (headers, path)
    assert (await tenant("GET", f"/sandboxes/{guest.id}")).status == 200


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "e2b_" + "0" * 40}, {"Authorization": "Bearer e2b_0"}])
async def test_control_plane_needs_a_key(api: Api, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/v2/sandboxes"), ("POST", "/v2/sandboxes"), ("GET", "/nothing")):
        answer = await api.request(method, path, headers)
        assert (answer.status, answer.document["code"]) == (401, 401)


async def test_quota_holds_for_creations_at_the_same_time(tenant: Tenant) -> None:
    answers = await asyncio.gather(*(tenant("POST", "/sandboxes", {"templateID": "base"}) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [201] * 3 + [429] * 5
    refused = next(answer for answer in answers if answer.status == 429)
    assert "3 sandboxes, which is its quota" in refused.document["message"]
    made = next(answer for answer in answers if answer.status == 201)
    await tenant("DELETE", f"/sandboxes/{made.document['sandboxID']}")
    await tenant.create()


async def test_same_idempotency_key_gets_the_same_sandbox(world: World, tenant: Tenant, other: Tenant) -> None:
    async def create(who: Tenant) -> Answer:
        return await who("POST", "/v2/sandboxes", {"templateID": "base"}, **{"Idempotency-Key": "job-1"})

    answers = [*await asyncio.gather(*(create(tenant) for _ in range(3))), await create(tenant)]
    assert len({answer.document["sandboxID"] for answer in answers}) == 1
    assert (await create(other)).document["sandboxID"] != answers[0].document["sandboxID"]
    assert len(await world.all(SANDBOX_CLAIM)) == 2


async def test_timeout_is_set_and_only_ever_extended_by_connections(world: World, tenant: Tenant) -> None:
    async def seconds_left() -> float:
        (claim,) = await world.all(SANDBOX_CLAIM)
        end = datetime.fromisoformat(claim["spec"]["lifecycle"]["shutdownTime"])
        return (end - datetime.now(UTC)).total_seconds()

    guest = await tenant.create(timeout=1000)
    assert (await tenant("POST", f"/sandboxes/{guest.id}/timeout", {"timeout": 500})).status == 204
    assert 400 < await seconds_left() <= 501
    assert (await tenant("POST", f"/v2/sandboxes/{guest.id}/connect", {"timeout": 10})).status == 200
    assert (await tenant("POST", f"/sandboxes/{guest.id}/refreshes", {"duration": 10})).status == 204
    assert 400 < await seconds_left() <= 501
    connected = await tenant("POST", f"/v2/sandboxes/{guest.id}/connect", {"timeout": 2000})
    assert connected.document["envdAccessToken"] == guest.token
    assert 1900 < await seconds_left() <= 2001
    for wrong in (-1, "10", True, None, 10**9):
        assert (await tenant("POST", f"/sandboxes/{guest.id}/timeout", {"timeout": wrong})).status == 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "templateID"),
        ({"templateID": 1}, "templateID"),
        ({"templateID": "base", "timeout": "1"}, "timeout"),
        ({"templateID": "base", "metadata": {"a": 1}}, "metadata"),
        ({"templateID": "base", "metadata": {"a": "b" * (65 << 10)}}, "64 KiB"),
        ({"templateID": "base", "envVars": {"A=B": "c"}}, "envVars"),
        ({"templateID": "base", "mcp": {"x": {}}}, "mcp is not supported"),
        ({"templateID": "base", "autoPause": True}, "autoPause is not supported"),
        ({"templateID": "base", "volumeMounts": [{"name": "a", "path": "/b"}]}, "volumeMounts is not supported"),
        ({"templateID": "base", "allow_internet_access": False}, "allow_internet_access=False is not supported"),
        ({"templateID": "base", "network": {"denyOut": ["0.0.0.0/0"]}}, "network.denyOut is not supported"),
        ([], "JSON object"),
    ],
)
async def test_what_is_not_served_is_refused_with_the_reason(
    world: World, tenant: Tenant, body: object, said: str
) -> None:
    answer = await tenant("POST", "/v2/sandboxes", body)
    assert answer.status == 400
    assert said in answer.document["message"]
    assert await world.all(SANDBOX_CLAIM) == []


@pytest.mark.parametrize("template", ["nosuch", "Not/A:name"])
async def test_unknown_templates_are_told(world: World, tenant: Tenant, template: str) -> None:
    answer = await tenant("POST", "/v2/sandboxes", {"templateID": template})
    assert answer.status == 404, answer
    assert template in answer.document["message"]
    assert await world.all(SANDBOX_CLAIM) == []


async def test_variables_are_kept_in_a_secret_that_ends_with_the_claim(world: World, tenant: Tenant) -> None:
    guest = await tenant.create(envVars={"TOKEN": "canary-1", "LINES": "a\nb=c"})
    (claim,) = await world.all(SANDBOX_CLAIM)
    assert "canary-1" not in str(claim)
    secret = await world.client.get(SECRET, f"{guest.id}-variables", world.namespace)
    assert secret["metadata"]["ownerReferences"][0]["uid"] == claim["metadata"]["uid"]
    messages, error = await guest.stream(
        "process.Process/Start", {"process": {"cmd": "sh", "args": ["-c", 'test "$LINES" = "a\nb=c" && test $TOKEN']}}
    )
    assert error is None and messages[-1]["event"]["end"]["exitCode"] == 0


async def test_pause_that_would_lose_state_is_refused(tenant: Tenant) -> None:
    guest = await tenant.create()
    for body, said in (({}, "does not keep memory"), ({"memory": False}, "has none: all its files would be lost")):
        answer = await tenant("POST", f"/sandboxes/{guest.id}/pause", body)
        assert answer.status == 400
        assert said in answer.document["message"]
    assert (await tenant("GET", f"/sandboxes/{guest.id}")).document["state"] == "running"


@pytest_asyncio.fixture
async def kept(world: World, tenant: Tenant) -> Guest:
    """A sandbox with a volume, of a tenant whose quota is three."""
    await world.template(
        name="disk",
        volumeClaimTemplates=[
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }
        ],
    )
    await world.pool(replicas=1, name="withvol", sandboxTemplateRef={"name": "disk"}, filled=False)
    return await tenant.create(templateID="withvol", metadata={"who": "me"})


async def states(tenant: Tenant, query: str = "") -> dict[str, str]:
    """The states of all sandboxes of a tenant, by their IDs."""
    return {each["sandboxID"]: each["state"] for each in (await tenant("GET", f"/v2/sandboxes{query}")).document}


async def test_paused_sandbox_is_listed_described_and_connected(
    world: World, tenant: Tenant, other: Tenant, kept: Guest
) -> None:
    assert (await tenant("POST", f"/sandboxes/{kept.id}/pause", {"memory": False})).status == 204
    (claim,) = await world.all(SANDBOX_CLAIM)
    ready = find_condition(claim["status"]["conditions"], READY)
    assert ready is not None and ready["status"] == "False", "a suspended claim is not ready"
    assert await states(tenant) == await states(tenant, "?state=paused") == {kept.id: "paused"}
    assert await states(tenant, "?state=running") == {}
    info = (await tenant("GET", f"/sandboxes/{kept.id}")).document
    assert (info["state"], info["metadata"]) == ("paused", {"who": "me"})
    assert (await tenant("POST", f"/sandboxes/{kept.id}/pause", {"memory": False})).status == 409
    assert (await tenant("POST", f"/sandboxes/{kept.id}/timeout", {"timeout": 500})).status == 204
    assert (await other("GET", f"/sandboxes/{kept.id}")).status == 404
    assert (await kept.api.request("GET", "/health", kept.headers)).status == 502
    resumed = await tenant("POST", f"/v2/sandboxes/{kept.id}/connect", {"timeout": 60})
    assert (resumed.status, resumed.document["envdAccessToken"]) == (201, kept.token)
    assert await states(tenant) == {kept.id: "running"}
    assert (await kept.api.request("GET", "/health", kept.headers)).status == 204
    assert (await tenant("POST", f"/v2/sandboxes/{kept.id}/connect", {"timeout": 60})).status == 200
    assert (await tenant("DELETE", f"/sandboxes/{kept.id}")).status == 204
    assert await world.all(SANDBOX_CLAIM) == []


async def test_paused_sandbox_counts_until_it_is_killed(world: World, tenant: Tenant, kept: Guest) -> None:
    assert (await tenant("POST", f"/sandboxes/{kept.id}/pause", {"memory": False})).status == 204
    for _ in range(2):
        await tenant.create()
    assert (await tenant("POST", "/v2/sandboxes", {"templateID": "base"})).status == 429
    assert (await tenant("DELETE", f"/sandboxes/{kept.id}")).status == 204
    assert kept.id not in await states(tenant)
    await tenant.create()
    assert (await tenant("GET", f"/sandboxes/{kept.id}")).status == 404
    assert kept.id not in [claim["metadata"]["name"] for claim in await world.all(SANDBOX_CLAIM)]


async def test_idempotency_key_of_a_paused_sandbox_finds_it(world: World, tenant: Tenant, kept: Guest) -> None:
    async def create() -> Answer:
        return await tenant("POST", "/v2/sandboxes", {"templateID": "withvol"}, **{"Idempotency-Key": "job"})

    sandbox_id = (await create()).document["sandboxID"]
    assert (await tenant("POST", f"/sandboxes/{sandbox_id}/pause", {"memory": False})).status == 204
    again = await create()
    assert (again.status, again.document["sandboxID"]) == (201, sandbox_id)
    assert await states(tenant) == {kept.id: "running", sandbox_id: "paused"}


async def test_sandbox_that_is_not_ready_can_be_found_and_killed(world: World, tenant: Tenant) -> None:
    guest = await tenant.create()
    (claim,) = await world.all(SANDBOX_CLAIM)
    sandbox = await world.client.get(SANDBOX, claim["status"]["sandbox"]["name"], world.namespace)
    failing = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "probe failed"}
    pod = Sandbox.from_object(sandbox).pod
    await world.patch(POD, pod, {"status": {"conditions": [failing]}}, subresource="status")

    async def not_ready() -> bool:
        (claim,) = await world.all(SANDBOX_CLAIM)
        return not Claim.from_object(claim).ready

    await world.until(not_ready)
    assert await states(tenant) == {guest.id: "running"}
    assert (await tenant("GET", f"/sandboxes/{guest.id}")).status == 200
    assert (await tenant("DELETE", f"/sandboxes/{guest.id}")).status == 204
    assert await states(tenant) == {}


async def test_keys_of_other_namespaces_claim_there(world: World, keys: ApiKeys, api: Api, tenant: Tenant) -> None:
    key, _ = await keys.create("elsewhere")
    answer = await Tenant(api, key)("POST", "/v2/sandboxes", {"templateID": "base"})
    assert answer.status >= 400
    assert await world.all(SANDBOX_CLAIM) == []


async def test_bodies_are_limited(tenant: Tenant) -> None:
    body = io.BytesIO(b'{"templateID": "' + b"x" * (2 << 20) + b'"}')
    answer = await tenant.api.request("POST", "/v2/sandboxes", tenant.headers, data=body)
    assert answer.status == 413


def labelled(name: str, key: str, created: str = "2026-01-01T00:00:00Z", end: str = "2026-01-02T00:00:00Z") -> Object:
    lifecycle = {"shutdownTime": end, "shutdownPolicy": "Delete"}
    return {
        "apiVersion": SANDBOX_CLAIM.api_version,
        "kind": SANDBOX_CLAIM.kind,
        "metadata": {"name": name, "labels": {KEY_LABEL: key}, "creationTimestamp": created},
        "spec": {"warmPoolRef": {"name": "none"}, "lifecycle": lifecycle},
    }


async def test_claim_of_another_namespace_does_not_hide_a_sandbox(
    world: World, endpoint: Endpoint, tenant: Tenant
) -> None:
    async def sees_both() -> bool:
        return len(endpoint.claims.all()) == 2

    guest = await tenant.create()
    (claim,) = await world.all(SANDBOX_CLAIM)
    decoy = labelled(guest.id, claim["metadata"]["labels"][KEY_LABEL], end="2030-01-01t00:00:00z")
    await world.client.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}})
    await world.client.create(SANDBOX_CLAIM, decoy, "elsewhere")
    await world.until(sees_both)
    assert (await tenant("GET", f"/sandboxes/{guest.id}")).status == 200
    assert await states(tenant) == {guest.id: "running"}
    assert (await tenant("DELETE", f"/sandboxes/{guest.id}")).status == 204
    assert (await tenant("GET", f"/sandboxes/{guest.id}")).status == 404


@pytest.mark.parametrize(
    ("second", "found"), [("2026-01-01T00:00:01Z", "first"), ("2026-01-01T00:00:00Z", None)], ids=["later", "at once"]
)
def test_id_is_that_of_the_claim_that_was_there_first(world: World, second: str, found: str | None) -> None:
    claims = ClaimCache(world.client, SystemClock(), Random(0))
    for version, (namespace, created) in enumerate({"last": second, "first": "2026-01-01T00:00:00Z"}.items(), 1):
        claim = labelled("iabc", "key", created)
        own = {"namespace": namespace, "uid": namespace, "resourceVersion": str(version)}
        claims.record({**claim, "metadata": {**claim["metadata"], **own}})
    chosen = claims.find("iabc")
    assert (None if chosen is None else chosen.claim.namespace) == found
    assert [each.claim.namespace for each in claims.of_key("key", "last")] == ["last"]


def test_time_that_only_the_api_reads_does_not_hide_a_claim() -> None:
    claim = labelled("iabc", "key", end="2026-01-01T00:00:00+24:00")
    claim["metadata"] |= {"namespace": "space", "uid": "1", "resourceVersion": "1"}
    assert SandboxClaim.from_object(claim).end.year == 9999
