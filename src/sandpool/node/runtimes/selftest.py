"""Self-test of a runtime: a real sandbox must be confined as it should be before the runtime is offered.

A shell prints its own process status from /proc, once as the container's program and once as a command in it. Checking
privileges and installed programs would not be enough: machines differ in what they refuse.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.runtime import Command, Container, ContainerSpec, PodSandbox, Runtime, RuntimeFailure, Stdio

# Seconds for the whole test; a sandbox takes tens of milliseconds.
_TIMEOUT: Final = 30.0
_UID: Final = 199_999
_PRINT: Final = 'while read -r line; do echo "$line"; done < /proc/self/status; echo pid $$'
_EXPECTED: Final = {
    "Uid:": ("the user", "1000\t1000\t1000\t1000"),
    "CapEff:": ("no capabilities", "0000000000000000"),
    "CapBnd:": ("no capabilities to be had", "0000000000000000"),
    "NoNewPrivs:": ("no new privileges", "1"),
    "Seccomp:": ("a seccomp filter", "2"),
}


async def run(
    runtime: Runtime,
    directory: Path,
    *,
    expected: Mapping[str, tuple[str, str]] = _EXPECTED,
) -> str | None:
    """Return None if the sandbox is confined, otherwise what is wrong."""
    # As root, any other user will do. Without root there is no choice.
    user, group = (_UID, _UID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.makedirs(directory, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="probe-", dir=directory))
    os.chmod(place, 0o711)
    pod = PodSandbox(
        uid=place.name, directory=place, host_uid=user, host_gid=group, netns=None, hostname="probe",
        limits=Limits(memory=256 << 20, pids=64),
    )  # fmt: skip
    try:
        async with asyncio.timeout(_TIMEOUT):
            return await _test(runtime, pod, expected)
    except TimeoutError:
        return f"a sandbox did not do what it should within {_TIMEOUT:.0f} s"
    except (RuntimeFailure, OSError) as error:
        return str(error)
    finally:
        await runtime.close_pod(pod)
        shutil.rmtree(place)


async def _test(runtime: Runtime, pod: PodSandbox, expected: Mapping[str, tuple[str, str]]) -> str | None:
    await runtime.open_pod(pod)
    spec = ContainerSpec(
        "probe", ("sh", "-c", f"{_PRINT}; exec cat"), env={"PATH": "/usr/bin:/bin"}, stdin=True,
        limits=Limits(cpu=1.0, memory=128 << 20, pids=32),
    )  # fmt: skip
    container = await runtime.create(pod, spec)
    try:
        await container.start()
        with _Reader(container.directory / "stdout") as output:
            found = await output.until("pid ")
            failure = _compare(found, "the program", expected) or await _test_command(container, expected)
            if failure is not None:
                return failure
            await container.pause()
            if not await container.is_paused():
                return "it cannot be paused"
            await container.kill()
            await container.wait()
    finally:
        await container.delete()
    return None


async def _test_command(container: Container, expected: Mapping[str, tuple[str, str]]) -> str | None:
    ours, theirs = os.pipe()
    try:
        nothing = os.open("/dev/null", os.O_RDWR)
        try:
            process = await container.execute(Command(("sh", "-c", _PRINT)), Stdio(nothing, theirs, nothing))
        finally:
            os.close(nothing)
        await process.wait()
        return _compare(os.read(ours, 65536).decode(), "a command", expected)
    finally:
        os.close(ours)
        os.close(theirs)


def _compare(output: str, who: str, expected: Mapping[str, tuple[str, str]]) -> str | None:
    found = {key: value.strip() for key, _, value in (line.partition("\t") for line in output.splitlines())}
    for key, (what, value) in expected.items():
        if found.get(key) != value:
            return f"{who} should have {what} ({key} {value}), and has {found.get(key)}"
    return None


class _Reader:
    def __init__(self, fifo: Path) -> None:
        self._descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._text = ""

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def until(self, mark: str) -> str:
        """Return the output up to a line that begins with ``mark``."""
        more = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._descriptor, more.set)
        while f"\n{mark}" not in self._text:
            await more.wait()
            more.clear()
            with suppress(BlockingIOError):
                self._text += os.read(self._descriptor, 65536).decode()
        return self._text
