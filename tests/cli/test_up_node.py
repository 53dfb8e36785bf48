"""``sandpool up`` with real sandboxes: a pool is filled, claims are served, and everything survives what may happen."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import POD, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import SANDBOX_NAME_HASH
from sandpool.api.resource import Object, SharedObject
from sandpool.bench.child_process import Component
from sandpool.bench.server_process import ServerProcess
from sandpool.cli.main import main
from sandpool.home.start import END_SANDBOXES
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load
from sandpool.kube.pod_client import ExecOptions, HttpPodClient
from sandpool.node.network.netns import NetworkNamespace
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.real_node import IMAGE
from tests.support.tiny_image import copy_programs

pytestmark = pytest.mark.isolation

QUICKSTART = files("sandpool.cli") / "manifests" / "quickstart.yaml"
KINDS = {type.kind: type for type in (SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM)}
WITHIN = 60.0


@pytest.fixture
def options(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """For a network namespace without a route out."""
    os.chmod(tmp_path, 0o755)
    host, _ = NetworkNamespace.make(tmp_path / "host", lambda: None)
    yield "--host-netns", str(host.path), "--metrics-bind-address", "0"
    host.remove()


@pytest.fixture
def server(tmp_path: Path, options: tuple[str, ...]) -> Iterator[ServerProcess]:
    with ServerProcess("up", options=options, data_dir=tmp_path / "data") as running:
        yield running


def reach(server: ServerProcess) -> Client:
    return Client(HttpTransport(load(server.kubeconfig)))


async def apply_quickstart(client: Client) -> None:
    for document in yaml.safe_load_all(QUICKSTART.read_text()):
        await client.create(KINDS[document["kind"]], document, "default")


async def pods(client: Client, count: int) -> dict[str, Object]:
    """The pods of sandboxes by name, once there are so many and all are ready."""

    async def all_ready() -> list[Object]:
        found: list[Object] = (await client.list(POD, "default", label_selector=SANDBOX_NAME_HASH))["items"]
        return found if len(found) == count and all(map(is_ready, found)) else []

    return {each["metadata"]["name"]: each for each in await until(all_ready, within=WITHIN)}


async def claimed(client: Client, name: str) -> str:
    """The sandbox of a claim, once it is ready."""

    async def ready() -> SharedObject | None:
        claim = await client.get(SANDBOX_CLAIM, name, "default")
        return claim if is_ready(claim) else None

    claim = await until(ready, within=WITHIN)
    assert claim is not None
    return str(claim["status"]["sandbox"]["name"])


def runs(found: Mapping[str, SharedObject]) -> dict[str, tuple[str, int]]:
    states = {name: pod["status"]["containerStatuses"][0] for name, pod in found.items()}
    return {name: (state["containerID"], state["restartCount"]) for name, state in states.items()}


def exposed_files(directory: Path) -> list[str]:
    """The files below a directory that other users of the machine could open if they reached the directory. Built-in
    images are left out: they have nothing that is not in the package."""
    found = []
    device = directory.stat().st_dev
    for entry in directory.iterdir():
        status = entry.lstat()
        if stat.S_ISLNK(status.st_mode) or status.st_dev != device:  # mounts: root file systems, namespaces
            continue
        if stat.S_ISDIR(status.st_mode):
            if status.st_mode & 0o001 and entry.name != "built-in":
                found += exposed_files(entry)
        elif status.st_mode & 0o007:
            found.append(f"{entry} {stat.S_IMODE(status.st_mode):o}")
    return found


async def test_pool_of_real_sandboxes_serves_a_claim(server: ServerProcess) -> None:
    assert "runs pods confined by bwrap" in server.process.tail()
    client = reach(server)
    await apply_quickstart(client)
    box = await claimed(client, "my-claim")
    before = await pods(client, 3)
    assert len({pod["status"]["podIP"] for pod in before.values()}) == 3
    assert server.data_dir is not None
    exposed = exposed_files(server.data_dir)
    assert not exposed, "\n".join(exposed)

    await client.close()
    server.restart(crash=True)
    client = reach(server)
    assert runs(await pods(client, 3)) == runs(before)
    await client.create(
        SANDBOX_CLAIM, new(SANDBOX_CLAIM, "another", spec={"warmPoolRef": {"name": "python"}}), "default"
    )
    assert await claimed(client, "another") in before
    assert await claimed(client, "my-claim") == box
    await pods(client, 4)

    await client.close()
    server.restart()
    client = reach(server)
    again = runs(await pods(client, 4))
    assert {restarts for _, restarts in again.values()} == {1}
    assert await claimed(client, "my-claim") == box
    await client.close()


def image(data: Path, *arguments: str) -> str:
    """Run ``sandpool image`` and return its output."""
    return CliRunner().invoke(main, ["image", *arguments, "--data-dir", str(data)]).output


async def test_imported_image_runs_and_survives_a_restart_with_keep(options: tuple[str, ...], tmp_path: Path) -> None:
    data = tmp_path / "data"
    copy_programs(tmp_path / "tree", "/bin/sleep", "/bin/cat")
    (tmp_path / "tree/words").write_text("mine\n")

    async def ready() -> SharedObject | None:
        found = await client.get(POD, "own", "default")
        return found if is_ready(found) else None

    with ServerProcess("up", options=(*options, "--keep"), data_dir=data) as server:
        assert image(data, "import", str(tmp_path / "tree"), "my/own:1").startswith("my/own:1 ")
        client = reach(server)
        probe = {"exec": {"command": ["cat", "/words"]}}
        container = {"name": "main", "image": "my/own:1", "command": ["sleep", "1000"], "readinessProbe": probe}
        await client.create(POD, new(POD, "own", spec={"containers": [container]}), "default")
        before = await until(ready, within=WITHIN)
        assert before is not None
        assert "is in use by a running container" in image(data, "rm", "my/own:1")
        await client.close()

    with ServerProcess("up", options=options, data_dir=data) as server:
        client = reach(server)
        after = await until(ready, within=WITHIN)
        assert after is not None
        assert runs({"own": after}) == runs({"own": before})
        await client.close()
    assert image(data, "rm", "my/own:1") == "my/own:1 removed\n"


async def run_in(kubeconfig: Path, pod: str, command: str) -> str:
    """Run a shell command in the sandbox and return its output."""
    session = await HttpPodClient(load(kubeconfig)).execute("default", pod, ExecOptions(["sh", "-c", command]))
    said = b"".join([output.data async for output in session.output()])
    assert await session.exit_code() == 0, said
    await session.close()
    return said.decode()


async def test_files_of_a_sandbox_survive_ctrl_c_and_a_restart(options: tuple[str, ...], tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    command: list[str | Path] = [
        *(sys.executable, "-m", "sandpool.cli.main", "up", "--unlisted", "--port", "0", "--router-bind-address", "0"),
        *("--kubeconfig", str(kubeconfig), "--data-dir", str(tmp_path / "data"), *options),
    ]
    up = Component("sandpool up", command, tmp_path / "log")

    async def ready() -> bool:
        return is_ready(await client.get(POD, "own", "default"))

    def stop(*signals: signal.Signals) -> str:
        for number in signals:
            os.kill(up.pid, number)
        assert up.wait(WITHIN) == 0
        return up.tail(2)

    try:
        up.start()
        up.wait_for(" is running, pid ", WITHIN)
        client = Client(HttpTransport(load(kubeconfig)))
        spec = {"containers": [{"name": "main", "image": IMAGE}]}
        await client.create(POD, new(POD, "own", spec=spec), "default")
        await until(ready, within=WITHIN)
        await run_in(kubeconfig, "own", "echo precious > /tmp/file; (sleep 1000 & echo $! > /tmp/pid)")
        await client.close()
        said = stop(signal.SIGINT)
        assert "stopping; a second Ctrl-C ends at once" in said
        assert "and 1 sandbox with files and processes, which run on until the next `sandpool up`" in said

        since = up.log.stat().st_size
        up.start()
        up.wait_for(" is running, pid ", WITHIN, since=since)
        client = Client(HttpTransport(load(kubeconfig)))
        await until(ready, within=WITHIN)
        assert await run_in(kubeconfig, "own", "cat /tmp/file; kill -0 $(cat /tmp/pid)") == "precious\n"
        await client.close()
        assert "; ended: 1 sandbox, with all files outside of volumes" in stop(END_SANDBOXES, signal.SIGINT)
    finally:
        up.stop(WITHIN)
