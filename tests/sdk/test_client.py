from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from sandpool import PoolExhausted, SandboxLost, ServiceUnavailable, TaskError
from sandpool.api.conditions import FINISHED, STATE_LOST, condition_of
from sandpool.api.kinds import POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.labels import IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER, MAX_CLAIMS
from sandpool.api.resource import SharedObject
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import InternalError, NotFound
from sandpool.sdk.client import CLIENT_LABEL, AsyncClient
from sandpool.sdk.errors import Refused, SandpoolError
from sandpool.sdk.results import Output
from sandpool.sdk.sandbox import AsyncSandbox
from sandpool.service.errors import NameTaken, NotReadyInTime, UnknownName
from sandpool.service.service import Service
from sandpool.testing.world import World
from tests.support.fake_pod_client import FakePodClient
from tests.support.namespace_limits import limit


async def filled_pool(world: World, replicas: int = 2) -> None:
    await world.template(name="python")
    await world.pool(replicas=replicas, name="python", template="python")
    await world.filled(replicas)


async def claims(world: World) -> list[str]:
    return [each["metadata"]["name"] for each in await world.all(SANDBOX_CLAIM)]


async def test_sandbox_runs_a_command_and_is_released(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        assert sandbox.launch == "warm"
        assert await claims(world) == [sandbox.name]
        result = await sandbox.run("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
        assert (result.truncated, result.stdout_size, result.stderr_size) == (False, 4, 4)
        with pytest.raises(TaskError, match="exit code 3:\nerr") as caught:
            result.check()
        assert caught.value.result is result
        assert not caught.value.retryable
        words = await sandbox.run(["cat"], stdin="text")
        assert words.check().stdout == "text"
    assert await claims(world) == []


async def test_output_is_streamed_and_limited(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    pieces: list[Output] = []
    async with client.sandbox() as sandbox:
        result = await sandbox.run("echo 123456789; echo no >&2", stream=pieces.append, max_output=4)
    assert (result.stdout, result.stderr, result.truncated) == ("1234", "no\n", True)
    assert (result.stdout_size, result.stderr_size) == (10, 3)
    assert {piece.stream: piece.text for piece in pieces} == {"stdout": "123456789\n", "stderr": "no\n"}


async def test_all_output_is_counted_and_a_mebibyte_of_it_kept(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        result = await sandbox.run("head -c 3000000 /dev/zero; head -c 10 /dev/zero >&2")
    assert (len(result.stdout_bytes), result.truncated) == (1 << 20, True)
    assert (result.stdout_size, result.stderr_size) == (3_000_000, 10)


async def test_environment_directory_and_timeout_apply_to_a_command(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        assert (await sandbox.run('echo "$A"; pwd', env={"A": "b c"}, cwd="/")).stdout == "b c\n/\n"
        late = await sandbox.run("echo begun; sleep 600", timeout=0.5)
        assert (late.exit_code, late.stdout, late.timed_out) == (-1, "begun\n", True)
        with pytest.raises(TaskError, match="longer than allowed"):
            late.check()


async def test_claim_with_variables_gets_them_in_a_warm_sandbox(world: World, client: AsyncClient) -> None:
    await client.template("tasks", image="image:1", late_binding=True)
    await client.pool("tasks", template="tasks", size=1)
    await world.filled(1)
    async with client.sandbox("tasks", env={"TASK": "42"}) as sandbox:
        claim = await world.get(SANDBOX_CLAIM, sandbox.name)
        assert claim["spec"]["env"] == [{"name": "TASK", "value": "42"}]
        assert sandbox.launch == "warm"
        pod = await world.get(POD, claim["status"]["sandbox"]["name"])
        assert world.binder.environments[pod["metadata"]["uid"]] == {"TASK": "42"}


async def test_times_of_sleep_of_a_claim_reach_its_warm_pod(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox(freeze_after=0.5, suspend_after="2h") as sandbox:
        assert sandbox.launch == "warm"
        wanted = {IDLE_FREEZE_AFTER: "0.5s", IDLE_SUSPEND_AFTER: "2h"}

        async def pod_has_them() -> bool:
            annotations = (await world.get(POD, sandbox._sandbox.pod))["metadata"].get("annotations") or {}
            return wanted.items() <= annotations.items()

        await world.until(pod_has_them)
    async with client.sandbox(key="job", freeze_after="never"):
        with pytest.raises(NameTaken, match=IDLE_FREEZE_AFTER):
            await client.sandbox(key="job", freeze_after=60)


async def test_metadata_of_a_claim_is_part_of_what_its_key_stands_for(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    given: dict[str, dict[str, str]] = {
        "labels": {"team": "a"},
        "pod_labels": {"sandbox.users.io/team": "a"},
        "pod_annotations": {"example.com/note": "a"},
    }
    async with client.sandbox(key="job", **given) as sandbox:  # type: ignore[arg-type]
        claim = await world.get(SANDBOX_CLAIM, sandbox.name)
        assert claim["spec"]["additionalPodMetadata"] == {
            "labels": given["pod_labels"],
            "annotations": given["pod_annotations"],
        }
        same = await client.sandbox(key="job", **given)  # type: ignore[arg-type]
        assert same.name == sandbox.name
        for each, ((label, _),) in ((name, values.items()) for name, values in given.items()):
            with pytest.raises(NameTaken, match=label):
                await client.sandbox(key="job", **{**given, each: {label: "b"}})  # type: ignore[arg-type]
    with pytest.raises(Refused, match="is not a duration"):
        client.sandbox(suspend_after="later")


async def test_all_claims_of_a_client_share_one_watch(world: World, client: AsyncClient) -> None:
    await filled_pool(world, 5)
    before = len([each for each in world.backend.audit.requests() if each.verb == "watch"])
    made = await asyncio.gather(*(client.sandbox() for _ in range(5)))
    watches = [each for each in world.backend.audit.requests() if each.verb == "watch"][before:]
    assert len(watches) <= 1
    assert len({each.name for each in made}) == 5
    await asyncio.gather(*(each.release() for each in made))
    assert await claims(world) == []


async def test_claim_of_a_program_that_died_expires(world: World, service: Service) -> None:
    await filled_pool(world)
    dead = AsyncClient(service=service, lease=30.0)
    sandbox = await dead.sandbox()
    claim = await world.get(SANDBOX_CLAIM, sandbox.name)
    end = datetime.fromisoformat(claim["spec"]["lifecycle"]["shutdownTime"])
    assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
    assert timedelta(seconds=20) < end - datetime.now(UTC) <= timedelta(seconds=30)
    await dead.leases.close()  # as if the process were gone
    past = MergePatch({"spec": {"lifecycle": {"shutdownTime": "2020-01-01T00:00:00Z"}}})
    await world.client.patch(SANDBOX_CLAIM, sandbox.name, past, world.namespace)
    await world.gone(SANDBOX_CLAIM, sandbox.name)
    with pytest.raises(SandboxLost, match="deleted or has expired") as caught:
        await sandbox._raise_if_lost(wait=30.0)
    assert caught.value.retryable
    assert caught.value.reason == "Deleted"
    await dead._watch.close()


async def test_lease_is_renewed_and_extended(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        moment = datetime.now(UTC) + timedelta(minutes=10)
        client.leases.clock = lambda: moment
        await client.leases.renew()
        lifecycle = (await world.get(SANDBOX_CLAIM, sandbox.name))["spec"]["lifecycle"]
        assert datetime.fromisoformat(lifecycle["shutdownTime"]) >= moment + timedelta(seconds=59)
        await sandbox.extend(3600)
        await client.leases.renew()  # never shortens it
        lifecycle = (await world.get(SANDBOX_CLAIM, sandbox.name))["spec"]["lifecycle"]
        assert datetime.fromisoformat(lifecycle["shutdownTime"]) >= moment + timedelta(seconds=3599)


async def test_lease_is_renewed_while_its_claim_waits_for_a_sandbox(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    await limit(world, MAX_CLAIMS, "1")
    first = await client.sandbox()
    asking = asyncio.ensure_future(client._acquire(client.sandbox(name="second", timeout=300.0)))
    await world.eventually(lambda: "second" in client.leases)
    moment = datetime.now(UTC) + timedelta(minutes=2)  # the lease that it was made with has ended
    client.leases.clock = lambda: moment
    await client.leases.renew()
    lifecycle = (await world.get(SANDBOX_CLAIM, "second"))["spec"]["lifecycle"]
    assert datetime.fromisoformat(lifecycle["shutdownTime"]) > moment
    await first.release()
    second = await asking
    await second.release()
    assert not client.leases._held


async def test_wrong_local_clock_is_corrected_while_the_claim_waits(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    await limit(world, MAX_CLAIMS, "1")
    first = await client.sandbox()
    client.leases.clock = lambda: datetime.now(UTC) + timedelta(hours=5)
    asking = asyncio.ensure_future(client._acquire(client.sandbox(name="second", timeout=300.0)))

    async def lease_is_short() -> bool:
        if not await world.exists(SANDBOX_CLAIM, "second"):
            return False
        lifecycle = (await world.get(SANDBOX_CLAIM, "second"))["spec"]["lifecycle"]
        return datetime.fromisoformat(lifecycle["shutdownTime"]) < datetime.now(UTC) + timedelta(minutes=5)

    await world.until(lease_is_short)
    await first.release()
    await (await asking).release()


@pytest.mark.parametrize("end", ["delete", "expire"])
async def test_claim_that_ends_while_it_waits_may_be_tried_again(world: World, client: AsyncClient, end: str) -> None:
    await filled_pool(world)
    await limit(world, MAX_CLAIMS, "1")
    async with client.sandbox():
        asking = asyncio.ensure_future(client._acquire(client.sandbox(name="second", timeout=300.0)))
        await world.eventually(lambda: "second" in client.leases)
        if end == "delete":
            await world.client.delete(SANDBOX_CLAIM, "second", world.namespace)
        else:
            past = MergePatch({"spec": {"lifecycle": {"shutdownTime": "2020-01-01T00:00:00Z"}}})
            await world.client.patch(SANDBOX_CLAIM, "second", past, world.namespace)
        with pytest.raises(SandboxLost) as caught:
            await asking
        assert caught.value.retryable
        assert "second" not in client.leases


async def test_wrong_local_clock_is_corrected(world: World, service: Service) -> None:
    await filled_pool(world)
    client = AsyncClient(service=service)
    client.leases.clock = lambda: datetime.now(UTC) + timedelta(hours=5)
    async with client.sandbox() as sandbox:
        lifecycle = (await world.get(SANDBOX_CLAIM, sandbox.name))["spec"]["lifecycle"]
        assert datetime.fromisoformat(lifecycle["shutdownTime"]) < datetime.now(UTC) + timedelta(minutes=2)
    await client.leases.close()
    await client._watch.close()


async def test_age_of_a_found_claim_is_no_error_of_the_clock(world: World, service: Service) -> None:
    await filled_pool(world)
    clients = [AsyncClient(service=service) for _ in range(2)]
    first = await clients[0].sandbox(key="job")
    clients[1].leases.clock = lambda: datetime.now(UTC) + timedelta(seconds=30)  # as if it were made a while ago
    await clients[1].sandbox(key="job")
    assert clients[1].leases.now() > datetime.now(UTC) + timedelta(seconds=20)
    await first.release()
    for client in clients:
        await client.leases.close()
        await client._watch.close()


async def test_kept_sandbox_has_no_lease_and_is_found_by_name(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox(name="mine", keep=True) as sandbox:
        assert sandbox.name not in client.leases
    assert await claims(world) == ["mine"]
    assert "lifecycle" not in (await world.get(SANDBOX_CLAIM, "mine"))["spec"]
    again = await client.connect("mine")
    assert (await again.run(["echo", "hello"])).stdout == "hello\n"
    await again.release()
    assert await claims(world) == []


async def test_same_key_gets_the_same_sandbox(world: World, client: AsyncClient, service: Service) -> None:
    await filled_pool(world)
    other = AsyncClient(service=service)
    first, second = await client.sandbox(key="job 1"), await other.sandbox(key="job 1")
    assert first.name == second.name
    assert (await client.sandbox(key="job 2")).name != first.name
    with pytest.raises(NameTaken):
        await other.sandbox(name=first.name)
    await other.leases.close()
    await other._watch.close()


async def test_cancelled_request_leaves_no_claim(world: World, client: AsyncClient) -> None:
    await world.template(name="python")
    await world.pool(replicas=0, name="python", template="python")
    for steps in range(12):
        asking = asyncio.ensure_future(client._acquire(client.sandbox()))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        done = await asyncio.gather(asking, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert await claims(world) == []


async def test_errors_tell_who_failed(world: World, client: AsyncClient, pods: FakePodClient) -> None:
    with pytest.raises(UnknownName, match="no pool"):
        await client.sandbox("nothing")
    await world.template(name="python")
    await world.pool(replicas=0, name="python", template="python")
    with pytest.raises(PoolExhausted) as caught:
        await client.sandbox(timeout=0.0)
    assert caught.value.retryable
    assert ServiceUnavailable.retryable
    assert not Refused.retryable


async def test_state_loss_is_reported_once(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        lost = {
            "type": "StateLost",
            "status": "True",
            "reason": "OOMKilled",
            "message": "Container main was killed.",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        name = sandbox._sandbox.name
        conditions = [*(await world.get(SANDBOX, name))["status"]["conditions"], lost]
        patch = MergePatch({"status": {"conditions": conditions}})
        await world.client.patch(SANDBOX, name, patch, world.namespace, subresource="status")
        with pytest.raises(SandboxLost, match="Container main was killed") as caught:
            await sandbox.run("exit 137")
        assert caught.value.reason == "OOMKilled"
        assert (await sandbox.run("exit 0")).ok


async def pod_of(world: World, sandbox: AsyncSandbox) -> SharedObject:
    return await world.get(POD, sandbox._sandbox.pod)


async def shows(world: World, sandbox: AsyncSandbox, type: str) -> bool:
    return condition_of(await world.get(SANDBOX, sandbox._sandbox.name), type) is not None


async def test_eviction_of_its_pod_is_the_loss_of_a_sandbox(
    world: World, client: AsyncClient, pods: FakePodClient
) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        await world.patch(POD, sandbox._sandbox.pod, {"status": evicted}, "status")
        await world.until(lambda: shows(world, sandbox, STATE_LOST))
        pods.refusal = NotFound("the container is gone")
        with pytest.raises(SandboxLost, match="low on resource: memory") as caught:
            await sandbox.run("true")
        assert (caught.value.reason, caught.value.retryable) == ("Evicted", True)


async def test_pod_that_ended_because_it_was_deleted_is_replaced_and_did_not_succeed(
    world: World, client: AsyncClient
) -> None:
    """An evicted pod whose processes end at once with exit code 0 is shown as succeeded until it is replaced."""
    await filled_pool(world)
    world.node.termination = 0.3
    async with client.sandbox() as sandbox:
        name = sandbox._sandbox.pod
        await world.client.delete(POD, name, world.namespace)
        await world.patch(POD, name, {"status": {"phase": "Succeeded"}}, "status")
        await world.until(lambda: shows(world, sandbox, FINISHED))
        with pytest.raises(SandboxLost, match="another one replaced it") as caught:
            await sandbox.run("exit 137")
        assert caught.value.reason == "PodReplaced"


async def test_failed_node_is_unavailable_until_its_pods_are_replaced(
    world: World, client: AsyncClient, pods: FakePodClient
) -> None:
    """A node that is silent for a moment keeps its sandboxes: they are lost when others replace them."""
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        pods.refusal = InternalError("error dialing backend: no route to host")
        with pytest.raises(ServiceUnavailable, match="no route to host") as caught:
            await sandbox.run("true")
        assert caught.value.retryable
        lost = await pod_of(world, sandbox)
        await world.client.delete(POD, lost["metadata"]["name"], world.namespace, grace_period_seconds=0)

        async def is_replaced() -> bool:
            found = [each for each in await world.all(POD) if each["metadata"]["name"] == lost["metadata"]["name"]]
            return [each for each in found if each["metadata"]["uid"] != lost["metadata"]["uid"]] != []

        await world.until(is_replaced)
        with pytest.raises(SandboxLost, match="another one replaced it") as gone:
            await sandbox.run("true")
        assert (gone.value.reason, gone.value.retryable) == ("PodReplaced", True)
        pods.refusal = None
        assert (await sandbox.run("true")).ok, "told once"


async def test_resumed_sandbox_has_the_variables_of_its_claim(world: World, client: AsyncClient) -> None:
    await client.template("tasks", image="image:1", late_binding=True)
    await client.pool("tasks", template="tasks", size=1)
    await world.filled(1)
    async with client.sandbox("tasks", env={"TASK": "42"}) as sandbox:
        before = await pod_of(world, sandbox)
        await sandbox.suspend()
        assert not await world.exists(POD, before["metadata"]["name"])
        await sandbox.resume()
        after = await pod_of(world, sandbox)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert world.binder.environments[after["metadata"]["uid"]] == {"TASK": "42"}
        assert (await sandbox.run("true")).ok, "a suspension is no loss"


async def test_resume_tells_why_the_variables_are_refused(world: World, client: AsyncClient) -> None:
    await client.template("tasks", image="image:1", late_binding=True)
    await client.pool("tasks", template="tasks", size=1)
    await world.filled(1)
    async with client.sandbox("tasks", env={"TASK": "42"}) as sandbox:
        await sandbox.suspend()
        await world.patch(SANDBOX_TEMPLATE, "tasks", {"spec": {"envVarsInjectionPolicy": "Disallowed"}})
        with pytest.raises(SandpoolError, match=r"runs without the variables of its claim: .*not allow"):
            await sandbox.resume()


async def test_suspension_that_takes_too_long_is_an_error(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        world.node.termination = 60.0
        with pytest.raises(NotReadyInTime, match=r"was not suspended within 0.1 s"):
            await sandbox.suspend(timeout=0.1)


async def test_client_marks_its_claims(world: World, client: AsyncClient) -> None:
    await filled_pool(world)
    async with client.sandbox() as sandbox:
        claim = await world.get(SANDBOX_CLAIM, sandbox.name)
        assert claim["metadata"]["labels"][CLIENT_LABEL] == client.id


def test_public_names_are_imported_on_first_use() -> None:
    script = (
        "import sys, sandpool; assert not [m for m in sys.modules if m.startswith('sandpool.')]; "
        "sandpool.Client; assert 'sandpool.server' not in sys.modules and 'aiohttp' not in sys.modules; "
        "print(sandpool.TaskError.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("TaskError\n", 0), done.stderr


def test_import_of_the_client_is_small() -> None:
    """These modules take less than 100 ms. The list is checked, because times depend on the machine."""
    script = (
        "import sys, sandpool; plain = set(sys.modules); sandpool.Client, sandpool.AsyncClient; "
        "print(*sorted(set(sys.modules) - plain))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    own = [name for name in imported if name.startswith("sandpool.")]
    assert {name.split(".")[1] for name in own} == {"api", "engine", "kube", "sdk", "service"}
    assert len(own) <= 50
    others = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) - {"sandpool"}
    assert {name for name in others if "cython" not in name} <= {"orjson", "httptools"}
    slow = {"json.tool", "difflib", "http.client", "email", "unittest", "urllib.request", "xml", "multiprocessing"}
    assert not slow & set(imported)
