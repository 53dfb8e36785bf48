from __future__ import annotations

import asyncio
import base64
from typing import Any

from tests.e2b.conftest import Guest, Tenant, events
from tests.support.fake_pod_client import FakePodClient

START = "process.Process/Start"


def shell(script: str, **rest: Any) -> dict[str, Any]:
    return {"process": {"cmd": "sh", "args": ["-c", script], **rest.pop("process", {})}, **rest}


def output(messages: list[Any], stream: str = "stdout") -> bytes:
    pieces = [message["event"].get("data", {}).get(stream, "") for message in messages]
    return b"".join(base64.b64decode(piece) for piece in pieces)


def end(messages: list[Any]) -> Any:
    return messages[-1]["event"]["end"]


async def test_command_streams_both_outputs_and_its_exit_code(tenant: Tenant) -> None:
    guest = await tenant.create()
    messages, error = await guest.stream(START, shell("echo out; echo err >&2; exit 3"))
    assert error is None
    assert messages[0]["event"]["start"]["pid"] > 0
    assert (output(messages), output(messages, "stderr")) == (b"out\n", b"err\n")
    assert end(messages) == {"exitCode": 3, "exited": True, "status": "exit status 3"}
    assert (await guest.call("process.Process/List")).document == {"processes": []}


async def test_variables_and_directory_apply(tenant: Tenant) -> None:
    guest = await tenant.create(envVars={"A": "sandbox", "B": "sandbox"})
    process = {"envs": {"B": "call"}, "cwd": "/"}
    messages, _ = await guest.stream(START, shell("echo $A $B; pwd", process=process))
    assert output(messages) == b"sandbox call\n/\n"


async def test_commands_that_cannot_start_say_why(tenant: Tenant) -> None:
    guest = await tenant.create()
    for message, code, said in (
        (shell("true", process={"cwd": "/none"}), "invalid_argument", "/none"),
        ({"process": {"cmd": "no-such-program"}}, "invalid_argument", "no-such-program"),
        ({"process": {"cmd": ""}}, "invalid_argument", "empty"),
        ({"process": []}, "invalid_argument", "object"),
    ):
        messages, error = await guest.stream(START, message)
        assert messages == []
        assert error["code"] == code and said in error["message"], error
    root = {"Authorization": "Basic " + base64.b64encode(b"no-such-user:").decode()}
    async with guest.open(START, shell("true"), **root) as response:
        assert response.status == 400
        assert "one user" in (await response.json())["message"]


async def test_process_outlives_its_client_and_is_found_by_its_pid(tenant: Tenant) -> None:
    guest = await tenant.create()
    async with guest.open(START, shell("read line; echo got $line; exit 4", stdin=True)) as response:
        first = await anext(events(response))
    pid = first["event"]["start"]["pid"]
    async with guest.open("process.Process/Connect", {"process": {"pid": pid}}) as response:
        following = events(response)
        assert (await anext(following))["event"]["start"]["pid"] == pid
        (listed,) = (await guest.call("process.Process/List")).document["processes"]
        assert (listed["pid"], listed["config"]["cmd"]) == (pid, "sh")
        given = {"process": {"pid": pid}, "input": {"stdin": base64.b64encode(b"it\n").decode()}}
        assert (await guest.call("process.Process/SendInput", **given)).status == 200
        messages = [message async for message in following]
    assert output(messages) == b"got it\n"
    assert end(messages)["exitCode"] == 4
    gone, error = await guest.stream("process.Process/Connect", {"process": {"pid": pid}})
    assert (gone, error["code"]) == ([], "not_found")


async def started(guest: Guest, message: dict[str, Any], **headers: str) -> int:
    """Start a process and leave it."""
    async with guest.open(START, message, **headers) as response:
        first = await anext(events(response))
    return int(first["event"]["start"]["pid"])


async def all_ended(guest: Guest) -> None:
    async with asyncio.timeout(30):
        while (await guest.call("process.Process/List")).document["processes"]:
            pass


async def test_all_followers_see_the_end_of_a_killed_process(tenant: Tenant) -> None:
    guest = await tenant.create()
    pid = await started(guest, shell("sleep 1000", tag="job"))
    async with (
        guest.open("process.Process/Connect", {"process": {"pid": pid}}) as first,
        guest.open("process.Process/Connect", {"process": {"tag": "job"}}) as second,
    ):
        streams = [events(first), events(second)]
        for stream in streams:
            await anext(stream)
        killed = await guest.call("process.Process/SendSignal", process={"pid": pid}, signal="SIGNAL_SIGKILL")
        assert killed.status == 200
        for stream in streams:
            messages = [message async for message in stream]
            assert end(messages)["exitCode"] == 137
    again = await guest.call("process.Process/SendSignal", process={"pid": pid}, signal="SIGNAL_SIGKILL")
    assert (again.status, again.document["code"]) == (404, "not_found")


async def test_time_limit_kills_the_process_for_all_followers(tenant: Tenant) -> None:
    guest = await tenant.create()
    async with guest.open(START, shell("sleep 1000"), **{"Connect-Timeout-Ms": "3000"}) as response:
        pid = (await anext(events(response)))["event"]["start"]["pid"]
        messages, error = await guest.stream("process.Process/Connect", {"process": {"pid": pid}})
        assert error is None
        assert end(messages)["exitCode"] == -1 and "longer than allowed" in end(messages)["error"]
    _, error = await guest.stream(START, shell("sleep 1000"), **{"Connect-Timeout-Ms": "200"})
    assert error["code"] == "deadline_exceeded"
    await all_ended(guest)


async def test_input_is_streamed_in_order_and_ended(tenant: Tenant) -> None:
    guest = await tenant.create()
    async with guest.open(START, shell("cat; echo end", stdin=True)) as response:
        following = events(response)
        pid = (await anext(following))["event"]["start"]["pid"]
        selector = {"process": {"pid": pid}}
        pieces = [{"data": {"input": {"stdin": base64.b64encode(b"%d " % n).decode()}}} for n in range(50)]
        answer, error = await guest.stream("process.Process/StreamInput", {"start": selector}, *pieces)
        assert (answer, error) == ([{}], None)
        assert (await guest.call("process.Process/CloseStdin", **selector)).status == 200
        messages = [message async for message in following]
    assert output(messages) == b"".join(b"%d " % n for n in range(50)) + b"end\n"
    _, error = await guest.stream("process.Process/StreamInput", pieces[0])
    assert error["code"] == "invalid_argument"


async def test_input_without_a_reader_is_refused(tenant: Tenant) -> None:
    guest = await tenant.create()
    pid = await started(guest, shell("sleep 1000", stdin=False))
    for method, rest in (
        ("SendInput", {"input": {"stdin": "eA=="}}),
        ("Update", {"pty": {"size": {"cols": 80, "rows": 24}}}),
    ):
        answer = await guest.call(f"process.Process/{method}", process={"pid": pid}, **rest)
        assert answer.document["code"] == "failed_precondition"


async def test_terminal_has_a_size_that_changes(tenant: Tenant) -> None:
    guest = await tenant.create()
    sized = {"process": {"cmd": "sh"}, "pty": {"size": {"cols": 100, "rows": 30}}}
    async with guest.open(START, sized) as response:
        following = events(response)
        pid = (await anext(following))["event"]["start"]["pid"]
        said = bytearray()

        async def type_and_wait(typed: bytes, wanted: bytes) -> None:
            data = base64.b64encode(typed).decode()
            await guest.call("process.Process/SendInput", process={"pid": pid}, input={"pty": data})
            while wanted not in said:
                message = await anext(following)
                said.extend(base64.b64decode(message["event"]["data"]["pty"]))

        await type_and_wait(b"stty size\n", b"30 100")
        resized = await guest.call(
            "process.Process/Update", process={"pid": pid}, pty={"size": {"cols": 90, "rows": 20}}
        )
        assert resized.status == 200
        await type_and_wait(b"stty size\n", b"20 90")
        await guest.call(
            "process.Process/SendInput", process={"pid": pid}, input={"pty": base64.b64encode(b"exit 7\n").decode()}
        )
        messages = [message async for message in following]
    assert end(messages)["exitCode"] == 7


async def test_number_of_processes_is_limited(tenant: Tenant) -> None:
    guest = await tenant.create()
    for _ in range(4):
        await started(guest, shell("sleep 1000"))
    _, error = await guest.stream(START, shell("true"))
    assert error["code"] == "resource_exhausted"


async def test_follower_that_does_not_read_delays_no_other_one_once_it_leaves(tenant: Tenant) -> None:
    guest = await tenant.create()
    async with guest.open(START, shell("head -c 30000000 /dev/zero", stdin=False)) as response:
        pid = (await anext(events(response)))["event"]["start"]["pid"]
        # Nothing more is read: the process waits once all buffers are full.
        (listed,) = (await guest.call("process.Process/List")).document["processes"]
        assert listed["pid"] == pid
    await all_ended(guest)


async def test_processes_end_with_their_sandbox(tenant: Tenant, pods: FakePodClient) -> None:
    guest = await tenant.create()
    async with guest.open(START, shell("sleep 1000")) as response:
        following = events(response)
        await anext(following)
        await tenant("DELETE", f"/sandboxes/{guest.id}")
        session = pods.sessions[-1]
        assert session.playing is not None
        await asyncio.wait([session.playing], timeout=30)
        assert session.closed


async def test_keepalives_fill_silence(tenant: Tenant) -> None:
    guest = await tenant.create()
    async with guest.open(START, shell("sleep 1000"), **{"Keepalive-Ping-Interval": "1"}) as response:
        following = events(response)
        await anext(following)
        assert await anext(following) == {"event": {"keepalive": {}}}


async def test_only_json_is_spoken(tenant: Tenant) -> None:
    guest = await tenant.create()
    for path, content_type in ((START, "application/connect+proto"), ("process.Process/List", "application/proto")):
        headers = {**guest.headers, "Content-Type": content_type}
        answer = await guest.api.request("POST", f"/{path}", headers, data=b"")
        assert answer.status == 415
    unknown = await guest.call("process.Process/Nothing")
    assert unknown.status == 501
    assert (await guest.api.request("GET", "/process.Process/List", guest.headers)).status == 405
