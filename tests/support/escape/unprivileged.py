"""Runs the probes in sandboxes that an unprivileged user starts.

Executed as such a user (``python -m`` this module, with the targets of the probes as argument) it prints its findings
as JSON. It is a separate program, because a process of root cannot become another user for a while.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from sandpool.engine.clock import SystemClock
from sandpool.node.cgroups.pid_namespace_groups import PidNamespaceGroups
from sandpool.node.launcher.client import LauncherClient
from sandpool.node.network.rootless import RootlessNetwork
from sandpool.node.runtimes.bwrap import BwrapRuntime
from sandpool.node.runtimes.runtime import (
    Bind,
    Command,
    Container,
    ContainerSpec,
    ImageLayers,
    PodSandbox,
    Stdio,
    Tmpfs,
)
from tests.support.escape.neighbourhood import PROBES

_ENV = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
_SERVER = "python3 -m http.server 8080 --bind 0.0.0.0"


class Trial:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.groups = PidNamespaceGroups(directory / "processes")
        self.launcher = LauncherClient()
        self.network = RootlessNetwork(directory / "addresses", self.launcher)
        self.runtime = BwrapRuntime(self.groups, self.launcher, SystemClock(), directory=directory / "selftest")
        self._numbers = count(1)

    async def pod(self) -> PodSandbox:
        uid = f"pod-{next(self._numbers)}"
        directory = self.directory / uid
        directory.mkdir()
        netns = (await self.network.attach({"metadata": {"uid": uid}})).netns
        pod = PodSandbox(uid, directory, os.geteuid(), os.getegid(), netns, "box")
        await self.runtime.open_pod(pod)
        return pod

    async def start(self, *argv: str, uid: int = 1000, pod: PodSandbox | None = None) -> Container:
        spec = ContainerSpec("main", argv, env=_ENV, uid=uid, gid=uid)
        container = await self.runtime.create(pod or await self.pod(), spec)
        await container.start()
        return container

    async def execute(self, container: Container, *argv: str) -> tuple[int, str]:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as nothing:
            stdio = Stdio(nothing.fileno(), output.fileno(), output.fileno())
            code = await (await container.execute(Command(argv), stdio)).wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")

    async def probes(self, facts: str, uid: int) -> Any:
        """Return the findings of a command in a container of this user."""
        container = await self.start("sleep", "1000", uid=uid)
        code, output = await self.execute(container, "python3", "-c", PROBES, facts)
        await container.delete()
        return json.loads(output) if code == 0 else output

    async def program(self, facts: str) -> Any:
        """Return the findings of the main program of a container."""
        container = await self.start("sh", "-c", 'python3 -c "$0" "$1" > /tmp/found; exec sleep 1000', PROBES, facts)
        for _ in range(600):
            code, output = await self.execute(container, "sh", "-c", "pgrep -x sleep > /dev/null && cat /tmp/found")
            if code == 0:
                break
            await asyncio.sleep(0.1)
        await container.delete()
        return json.loads(output)

    async def semantics(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        container = await self.start("sh", "-c", "exit 7")
        found["exit code"] = (await container.wait()).code
        await container.delete()

        container = await self.start("sh", "-c", "trap 'exit 9' TERM; touch /tmp/set; while :; do sleep 0.05; done")
        await self.execute(container, "sh", "-c", "until test -e /tmp/set; do sleep 0.05; done")
        await container.signal(signal.SIGTERM)
        found["signal"] = (await container.wait()).code
        await container.delete()

        container = await self.start("sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & while :; do :; done")
        await container.pause()
        before = await container.usage()
        await asyncio.sleep(0.2)
        after = await container.usage()
        found["paused"] = [await container.is_paused(), after.cpu_nanoseconds == before.cpu_nanoseconds]
        await container.resume()
        found["resumed"] = (await self.execute(container, "sh", "-c", "echo here; exit 3"))[0]
        await container.pause()
        await container.kill()
        found["killed"] = (await container.wait()).code
        await container.delete()

        pod = await self.pod()
        container = await self.start("sh", "-c", f"cd /tmp && exec {_SERVER} 2>/dev/null", pod=pod)
        found["answer"] = await self.ask(pod)
        other = BwrapRuntime(self.groups, self.launcher, SystemClock(), directory=self.directory)
        adopted = await other.adopt(pod, "main")
        assert adopted is not None
        found["adopted"] = (await self.execute(adopted, "id", "-u"))[1]
        await adopted.delete()
        await container.delete()
        return found

    async def image(self) -> dict[str, Any]:
        """Change files of an image: the changes must go to a copy that is removed with the container."""
        layer = self.directory / "layer"
        (layer / "etc").mkdir(parents=True)
        (layer / "etc" / "os-release").write_text("ID=tiny\n")
        for name in ("bin", "lib", "lib64"):
            (layer / name).symlink_to(f"usr/{name}")
        script = "cat /etc/os-release; echo changed > /etc/os-release; touch /new; cat /etc/os-release; exec sleep 1000"
        spec = ContainerSpec(
            "main", ("sh", "-c", f"({script}) > /tmp/said"), env=_ENV, uid=0, gid=0, root=ImageLayers((layer,)),
            mounts=(Bind(Path("/usr"), "/usr", read_only=True), Tmpfs("/tmp", 1 << 20)),
        )  # fmt: skip
        container = await self.runtime.create(await self.pod(), spec)
        await container.start()
        _, said = await self.execute(container, "sh", "-c", "until test -e /new; do sleep 0.1; done; cat /tmp/said")
        await container.delete()
        left = [(layer / "etc" / "os-release").read_text(), (layer / "new").exists()]
        return {"said": said, "left": left}

    async def ask(self, pod: PodSandbox) -> str:
        loop = asyncio.get_running_loop()
        for _ in range(200):
            try:
                with await self.network.dial(pod.uid, 8080) as connection:
                    await loop.sock_sendall(connection, b"GET / HTTP/1.0\r\n\r\n")
                    return (await loop.sock_recv(connection, 15)).decode()
            except ConnectionError:
                await asyncio.sleep(0.05)
        return "nothing"


async def run(facts: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name))
        await trial.network.start()
        try:
            found = {
                "self-test": await trial.runtime.probe(),
                "root": await trial.probes(facts, 0),
                "user": await trial.probes(facts, 1000),
                "program": await trial.program(facts),
                "semantics": await trial.semantics(),
                "image": await trial.image(),
            }
        finally:
            await trial.groups.group().remove()
            await trial.network.stop()
            trial.launcher.close()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))))
