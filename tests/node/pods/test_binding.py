"""What the node knows of the variables that were handed to a pod."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sandpool.api.resource import Object
from sandpool.kube.byte_stream import AsyncioByteStream
from sandpool.kube.late_binding import exchange
from sandpool.node.pods.binding import NotBound, PodBinding
from sandpool.sandboxd import binding


class Inside:
    """sandboxd in the pod."""

    def __init__(self) -> None:
        self.environ: dict[str, str] = {}
        self.connections = 0
        self.start()

    def start(self) -> None:
        """Start, or start again as after a restart of the container."""
        self.environ.clear()
        listening = binding.serve(binding.Binding(self.environ), 0)
        assert listening is not None
        self.listening = listening

    def stop(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    async def connect(self) -> socket.socket:
        self.connections += 1
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.listening.getsockname())
        return sock


@pytest.fixture
def inside() -> Iterator[Inside]:
    made = Inside()
    yield made
    made.stop()


async def ask(pod: PodBinding, inside: Inside, message: Object, run: str = "run-1") -> Object:
    stream = AsyncioByteStream(*await asyncio.open_connection(sock=await pod.connection(run, inside.connect)))
    try:
        return await exchange(stream, message)
    finally:
        await stream.close()


def request(values: Mapping[str, str], claim: str = "claim-1", pod: str = "u1") -> Object:
    return {"bind": {"claim": claim, "pod": pod, "values": values}}


async def test_values_are_known_once_sandboxd_has_acknowledged_them(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1")
    assert await pod.values("run-1", inside.connect) == {}
    assert await ask(pod, inside, request({"A": "1"})) == {"claim": "claim-1", "first": True}
    assert await pod.values("run-1", inside.connect) == inside.environ == {"A": "1"}
    assert inside.connections == 1, "nothing was asked in vain"


async def test_refused_values_are_not_known(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1")
    await ask(pod, inside, request({"A": "1"}))
    assert (await ask(pod, inside, request({"A": "2"}, claim="claim-2")))["error"] == "BoundToAnother"
    assert await pod.values("run-1", inside.connect) == {"A": "1"}


async def test_claim_that_asks_again_keeps_its_first_values(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1")
    await ask(pod, inside, request({"A": "1"}))
    assert await ask(pod, inside, request({"A": "2"})) == {"claim": "claim-1", "first": False}
    assert await pod.values("run-1", inside.connect) == {"A": "1"}


async def test_request_for_another_pod_does_not_reach_sandboxd(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1")
    assert (await ask(pod, inside, request({"A": "1"}, pod="u0")))["error"] == "WrongPod"
    assert inside.environ == {}


async def test_recall_is_not_passed_on(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1")
    await ask(pod, inside, request({"A": "1"}))
    assert (await ask(pod, inside, {"recall": ""}))["error"] == "Denied"


async def test_next_agent_recalls_the_values(tmp_path: Path, inside: Inside) -> None:
    await ask(PodBinding(tmp_path, "u1"), inside, request({"A": "1"}))
    successor = PodBinding(tmp_path, "u1")
    assert await successor.values("run-1", inside.connect) == {"A": "1"}
    assert await successor.values("run-1", inside.connect) == {"A": "1"}
    assert inside.connections == 2, "it asked once"


async def test_values_are_on_no_disk(tmp_path: Path, inside: Inside) -> None:
    await ask(PodBinding(tmp_path, "u1"), inside, request({"A": "canary"}))
    written, mode = await asyncio.to_thread(_only_file, tmp_path)
    assert "canary" not in written
    assert mode & 0o077 == 0


def _only_file(directory: Path) -> tuple[str, int]:
    (path,) = directory.iterdir()
    return path.read_text(), path.stat().st_mode


async def test_commands_in_a_restarted_container_wait_until_it_is_bound_again(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1")
    await ask(pod, inside, request({"A": "1"}))
    inside.stop()
    inside.start()
    command = asyncio.create_task(pod.values("run-2", inside.connect))
    await asyncio.sleep(0)
    assert await ask(pod, inside, request({"A": "1"}), "run-2") == {"claim": "claim-1", "first": True}
    assert await command == await pod.values("run-2", inside.connect) == {"A": "1"}
    assert await PodBinding(tmp_path, "u1").values("run-2", inside.connect) == {"A": "1"}


async def test_commands_of_a_pod_that_a_claim_will_bind_wait_for_it(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1", expected=True)
    commands = [asyncio.create_task(pod.values("run-1", inside.connect)) for _ in range(3)]
    await asyncio.sleep(0)
    assert (await ask(pod, inside, request({"A": "1"}, pod="u0")))["error"] == "WrongPod"
    assert not any(command.done() for command in commands)
    await ask(pod, inside, request({"A": "1"}))
    assert await asyncio.gather(*commands) == [{"A": "1"}] * 3


async def test_commands_fail_if_the_claim_does_not_bind_the_pod_in_time(tmp_path: Path, inside: Inside) -> None:
    pod = PodBinding(tmp_path, "u1", expected=True, timeout=0.01)
    with pytest.raises(NotBound, match=r"not handed over within 0.01 s; the condition Ready of the claim says why"):
        await pod.values("run-1", inside.connect)
    await ask(pod, inside, request({"A": "1"}))
    assert await pod.values("run-1", inside.connect) == {"A": "1"}


async def test_next_agent_waits_for_a_restarted_container_to_be_bound(tmp_path: Path, inside: Inside) -> None:
    await ask(PodBinding(tmp_path, "u1"), inside, request({"A": "1"}))
    with pytest.raises(NotBound):
        await PodBinding(tmp_path, "u1", timeout=0.01).values("run-2", inside.connect)


async def test_commands_run_without_the_variables_if_sandboxd_is_gone(tmp_path: Path, inside: Inside) -> None:
    await ask(PodBinding(tmp_path, "u1"), inside, request({"A": "1"}))

    async def refused() -> socket.socket:
        raise ConnectionRefusedError

    assert await PodBinding(tmp_path, "u1").values("run-1", refused) == {}


async def test_pod_without_sandboxd_refuses_the_connection(tmp_path: Path) -> None:
    async def refused() -> socket.socket:
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        await PodBinding(tmp_path, "u1").connection("run-1", refused)
