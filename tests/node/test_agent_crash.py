"""Agents that are killed: pods keep running, and the next agent reports them correctly."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from glob import glob
from pathlib import Path
from random import Random

import pytest

from sandpool.api.conditions import condition_of
from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, POD
from sandpool.api.resource import Object
from sandpool.kube import kubeconfig as kubeconfigs
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, NotFound
from sandpool.kube.http import HttpTransport
from sandpool.node.network.netns import NetworkNamespace
from sandpool.node.pods.checkpoint import boot_id
from sandpool.node.runtimes.spec_codec import SPEC
from sandpool.server.serving import daemon
from sandpool.testing.objects import new, pod
from sandpool.testing.waiting import until
from tests.support.node_process import NodeProcess, PodPlacement
from tests.support.real_node import IMAGE

pytestmark = pytest.mark.isolation

_FIRST_USER = 2_100_000
_USERS_EACH = 200

KILLS = 100
EVERY = 10  # kills after which everything has to come to rest


class Machine:
    """A node that can be killed, and a client that survives it."""

    def __init__(self, place: PodPlacement) -> None:
        self.place = place
        self.node = NodeProcess(place)

    @property
    def users(self) -> range:
        return range(self.place.first_user, self.place.first_user + _USERS_EACH)

    @asynccontextmanager
    async def talking(self) -> AsyncIterator[Client]:
        transport = HttpTransport(kubeconfigs.load(self.place.kubeconfig))
        try:
            yield Client(transport)
        finally:
            await transport.close()

    async def create(self, name: str, *command: str, **spec: object) -> None:
        container = {"name": "main", "image": IMAGE, "command": list(command)}
        body = pod(name, spec={"containers": [container], "terminationGracePeriodSeconds": 1, **spec})
        async with self.talking() as client:
            await client.create(POD, body, "default")

    async def delete(self, name: str) -> None:
        async with self.talking() as client:
            await client.delete(POD, name, "default")

    async def pods(self) -> dict[str, Object]:
        async with self.talking() as client:
            found = (await client.list(POD, "default"))["items"]
        return {each["metadata"]["name"]: each for each in found}

    async def ready(self, *names: str) -> dict[str, Object]:
        """The pods, once all of these are ready."""

        async def all_ready() -> dict[str, Object]:
            found = await self.pods()
            return found if all(is_ready(found.get(name)) for name in names) else {}

        return await until(all_ready, within=60)

    async def phase(self, name: str, phase: str) -> Object:
        async def reached() -> Object | None:
            found = (await self.pods())[name]
            return found if found["status"].get("phase") == phase else None

        found = await until(reached, within=60)
        assert found is not None
        return found

    async def gone(self, *names: str) -> None:
        async def none_left() -> bool:
            return not await self.pods_named(*names)

        await until(none_left, within=60)

    async def pods_named(self, *names: str) -> set[str]:
        return set(names) & set(await self.pods())

    def commands(self) -> list[str]:
        """The command lines of all processes of pods, by user of the pod."""
        found = []
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                fields = dict(line.partition(":")[::2] for line in status.read_text().splitlines())
                if int(fields["Uid"].split()[0]) in self.users and not fields["State"].strip().startswith("Z"):
                    text = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(text.strip())
        return sorted(text for text in found if text.startswith("sleep"))

    async def reboot(self) -> None:
        """Simulate a power failure: files stay; processes, cgroups, mounts and networks are gone."""
        await self.node.kill()
        await asyncio.to_thread(_end_everything, f"sandpool{self.place.instance}", Path(self.place.directory, "node"))


def _end_everything(cgroup: str, directory: Path) -> None:
    groups = [Path(path) for path in glob(f"/sys/fs/cgroup/**/{cgroup}/", recursive=True)]
    for group in groups:
        _end_all(group)
    for group in groups:
        for below, _, _ in os.walk(group, topdown=False):
            os.rmdir(below)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in reversed([each for each in mounts if each.startswith(f"{directory}/")]):
        subprocess.run(["umount", mount], check=True)
    for run in directory.glob("pods/*/_runs/*"):
        run.write_text(run.read_text().replace(boot_id(), "the boot before"))


def _end_all(group: Path) -> None:
    """Kill all processes of a cgroup and return when they are gone."""
    members = [int(text) for file in group.rglob("cgroup.procs") for text in file.read_text().split()]
    for member in members:
        with suppress(ProcessLookupError):
            process = os.pidfd_open(member)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [])
            os.close(process)
    if members:
        _end_all(group)


def is_ready(found: Object | None) -> bool:
    condition = None if found is None else condition_of(found, "Ready")
    return condition is not None and condition["status"] == "True"


@asynccontextmanager
async def machine(directory: Path, *, serve: bool) -> AsyncIterator[Machine]:
    """Raises AssertionError at the end if anything of a pod is left."""
    os.chmod(directory, 0o755)
    host, _ = NetworkNamespace.make(directory / "host", lambda: None)
    first = _FIRST_USER + os.getpid() % 1_000 * _USERS_EACH
    place = PodPlacement(str(directory), str(host.path), f"-k{os.getpid()}", first, serve)
    api = None if serve else daemon.Daemon(place.server())
    if api is not None:
        await api.start()
    running = Machine(place)
    try:
        await running.node.start()
        yield running
    finally:
        await running.node.end()
        if api is not None:
            await api.stop()
        host.remove()
    assert running.commands() == []
    assert os.listdir(directory / "node" / "pods") == [] or serve


@pytest.mark.parametrize("serve", [False, True], ids=["agent alone", "agent and API"])
async def test_pods_outlive_a_node_that_is_killed(tmp_path: Path, serve: bool) -> None:
    async with machine(tmp_path, serve=serve) as here:
        await here.create("stays", "sleep", "5001")
        await here.create("ends", "sh", "-c", "sleep 1; exit 7", restartPolicy="Never")
        await here.create("goes", "sleep", "5002")
        before = (await here.ready("stays", "ends", "goes"))["stays"]
        await here.node.kill()
        assert here.commands() == ["sleep 1", "sleep 5001", "sleep 5002"]

        async def ended() -> bool:
            return "sleep 1" not in here.commands()

        await until(ended)
        if not serve:
            await here.delete("goes")
        await here.node.start()

        found = await here.phase("ends", "Failed")
        assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
        if serve:
            await here.delete("goes")
        await here.gone("goes")
        assert here.commands() == ["sleep 5001"]
        after = (await here.ready("stays"))["stays"]
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
        assert after["status"]["podIP"] == before["status"]["podIP"]
        await here.create("later", "sleep", "5003")
        await here.ready("later")
        for name in ("stays", "ends", "later"):
            await here.delete(name)
        await here.gone("stays", "ends", "later")


async def test_programs_stay_for_running_pods_after_an_upgrade(tmp_path: Path) -> None:
    async with machine(tmp_path, serve=False) as here:
        await here.create("stays", "sleep", "5004")
        uid = (await here.ready("stays"))["stays"]["metadata"]["uid"]
        await here.node.kill()
        built_in = tmp_path / "node" / "images" / "built-in"
        (current,) = built_in.iterdir()
        for name in ("used", "unused"):
            shutil.copytree(current, built_in / name)
        record = tmp_path / "node" / "pods" / uid / "main" / SPEC
        record.write_text(record.read_text().replace(str(current), str(built_in / "used")))
        await here.node.start()
        await here.create("later", "sleep", "5005")
        await here.ready("stays", "later")
        assert {path.name for path in built_in.iterdir()} == {current.name, "used"}
        for name in ("stays", "later"):
            await here.delete(name)
        await here.gone("stays", "later")


async def test_pods_restart_with_their_data_after_a_reboot(tmp_path: Path) -> None:
    script = "for d in /claim /disk /plain; do echo run >> $d/runs; done; exec sleep 500$(cat /*/runs | wc -l)"
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("claim", "disk", "plain")]
    volumes = [
        {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "disk", "emptyDir": {"sizeLimit": "8Mi"}},
        {"name": "plain", "emptyDir": {}},
    ]
    init = {"name": "init", "image": IMAGE, "command": ["sh", "-c", "echo run >> /plain/runs"], "volumeMounts": mounts}
    main = {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], "volumeMounts": mounts}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    async with machine(tmp_path, serve=True) as here:
        async with here.talking() as client:
            await client.create(PERSISTENT_VOLUME_CLAIM, new(PERSISTENT_VOLUME_CLAIM, "data", spec=claim), "default")
        await here.create("stays", containers=[main], initContainers=[init], volumes=volumes)
        await here.create("once", "sleep", "6001", restartPolicy="Never")
        await here.ready("stays", "once")

        async def all_run() -> bool:
            return here.commands() == ["sleep 5004", "sleep 6001"]  # the shell of "stays" runs a while before it

        await until(all_run)
        await here.reboot()
        assert here.commands() == []
        await here.node.start()

        async def again() -> bool:
            return here.commands() == ["sleep 5008"]  # twice as many runs have left their mark

        await until(again, within=60)
        found = (await here.ready("stays"))["stays"]["status"]["containerStatuses"][0]
        assert (found["restartCount"], found["lastState"]["terminated"]["reason"]) == (1, "ContainerStatusUnknown")
        assert (await here.phase("once", "Failed"))["status"]["phase"] == "Failed"
        for name in ("stays", "once"):
            await here.delete(name)
        await here.gone("stays", "once")


async def test_orphans_are_removed_after_a_crash(tmp_path: Path) -> None:
    async with machine(tmp_path, serve=False) as here:
        await here.create("forgotten", "sleep", "5001")
        await here.ready("forgotten")
        await here.node.kill()
        async with here.talking() as client:
            await client.delete(POD, "forgotten", "default", grace_period_seconds=0)
        assert here.commands() == ["sleep 5001"]
        await here.node.start()

        async def swept() -> bool:
            return here.commands() == []

        await until(swept)
        assert os.listdir(tmp_path / "node" / "pods") == []


@pytest.mark.long
@pytest.mark.parametrize("serve", [False, True], ids=["agent alone", "agent and API"])
async def test_pods_survive_a_hundred_kills_at_random_moments(tmp_path: Path, serve: bool) -> None:
    """Pods are created and deleted throughout. After each kill every pod runs exactly once, and no other process."""
    rng = Random(4711)
    wanted: set[str] = set()
    async with machine(tmp_path, serve=serve) as here:

        async def exactly_these() -> bool:
            return set(await here.pods()) == wanted and len(here.commands()) == len(wanted)

        for attempt in range(KILLS):
            for number in range(2):
                name = f"pod-{attempt}-{number}"
                await _send_until_answered(here.create(name, "sleep", f"{6000 + attempt * 2 + number}"))
                wanted.add(name)
            for name in rng.sample(sorted(wanted), max(len(wanted) - 6, 0)):
                await _send_until_answered(here.delete(name))
                wanted.discard(name)
            await asyncio.sleep(rng.uniform(0.0, 0.6))
            await here.node.kill()
            await here.node.start()
            if attempt % EVERY == EVERY - 1:
                await until(exactly_these, within=120)
                await here.ready(*wanted)
        for name in wanted:
            await here.delete(name)
        await here.gone(*wanted)


async def _send_until_answered(request: object) -> None:
    """A request with a lost response either took effect or did not; both are accepted."""
    with suppress(NotFound, ApiError):
        await request  # type: ignore[misc]
