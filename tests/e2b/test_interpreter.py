from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson

from sandpool.e2b.interpreter import Context
from sandpool.sdk.code import Execution
from sandpool.sdk.results import Output
from tests.e2b.conftest import Answer, Guest, Tenant


class Interpreter:
    """The code interpreter of a sandbox. As the package does, it sends the token for commands only with code."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.headers = {
            "E2b-Sandbox-Id": guest.id,
            "E2b-Sandbox-Port": "49999",
            "E2B-Traffic-Access-Token": guest.traffic_token,
        }
        self.token = {"X-Access-Token": guest.token}

    async def request(self, method: str, path: str, body: Any = None) -> Answer:
        headers = self.headers | (self.token if path == "/execute" else {})
        return await self.guest.api.request(method, path, headers, json=body)

    async def run(self, code: str, **rest: Any) -> dict[str, list[Any]]:
        """Run code; the events by their type."""
        answer = await self.request("POST", "/execute", {"code": code, **rest})
        assert answer.status == 200, answer
        events = [orjson.loads(line) for line in answer.body.splitlines()]
        assert events[-1] == {"type": "end_of_execution"}
        kinds = ("stdout", "stderr", "result", "error", "number_of_executions")
        return {kind: [each for each in events if each["type"] == kind] for kind in kinds}

    async def text(self, code: str, **rest: Any) -> Any:
        """The text of the main result, or the name of the error."""
        events = await self.run(code, **rest)
        found = [*(each["text"] for each in events["result"]), *(each["name"] for each in events["error"])]
        return found[0] if found else None


async def test_state_output_results_and_errors(tenant: Tenant) -> None:
    interpreter = Interpreter(await tenant.create())
    events = await interpreter.run("import sys; x = 20; print('out'); print('err', file=sys.stderr); x + 1")
    assert "".join(each["text"] for each in events["stdout"]) == "out\n"
    assert "".join(each["text"] for each in events["stderr"]) == "err\n"
    assert all(each["timestamp"] > 0 for each in events["stdout"])
    assert events["result"] == [{"type": "result", "text": "21", "is_main_result": True}]
    events = await interpreter.run("x / 0")
    assert events["error"][0]["name"] == "ZeroDivisionError"
    assert "x / 0" in events["error"][0]["traceback"]
    assert events["number_of_executions"] == [{"type": "number_of_executions", "execution_count": 2}]
    assert (await interpreter.run("y = 1"))["result"] == []


async def test_rich_results_have_all_their_forms(tenant: Tenant) -> None:
    interpreter = Interpreter(await tenant.create())
    code = """
class Shown:
    def _repr_html_(self): return "<b>hi</b>"
    def _repr_png_(self): return b"picture"
    def _repr_json_(self): return {"a": 1}
    def __repr__(self): return "shown"
Shown()
"""
    (result,) = (await interpreter.run(code))["result"]
    assert result == {
        "type": "result",
        "text": "shown",
        "is_main_result": True,
        "html": "<b>hi</b>",
        "json": {"a": 1},
        "png": "cGljdHVyZQ==",
    }


async def test_figure_is_not_the_main_result(tenant: Tenant) -> None:
    interpreter = Interpreter(await tenant.create())
    plots = """
import sys, types
figure = types.SimpleNamespace(savefig=lambda file, **rest: file.write(b"png"))
sys.modules["matplotlib.pyplot"] = types.SimpleNamespace(
    get_fignums=lambda: [1], figure=lambda number: figure, close=lambda which: sys.modules.pop("matplotlib.pyplot")
)
"""
    (figure,) = (await interpreter.run(plots))["result"]
    assert (figure["is_main_result"], figure["png"]) == (False, "cG5n")


async def test_variables_of_a_call_end_with_it(tenant: Tenant) -> None:
    interpreter = Interpreter(await tenant.create(envVars={"A": "sandbox", "B": "sandbox"}))
    shown = "import os; [os.environ.get(each) for each in 'ABC']"
    assert await interpreter.text(shown, env_vars={"B": "call", "C": "call"}) == "['sandbox', 'call', 'call']"
    assert await interpreter.text(shown) == "['sandbox', 'sandbox', None]"


async def test_contexts_are_apart_and_can_be_restarted(tenant: Tenant, directory: Path) -> None:
    interpreter = Interpreter(await tenant.create())
    (directory / "there").mkdir()
    made = (await interpreter.request("POST", "/contexts", {"cwd": "there"})).document
    assert (made["language"], made["cwd"]) == ("python", str(directory / "there"))
    await interpreter.run("x = 1")
    await interpreter.run("x = 2", context_id=made["id"])
    assert (await interpreter.text("x"), await interpreter.text("x", context_id=made["id"])) == ("1", "2")
    listed = (await interpreter.request("GET", "/contexts")).document
    assert {each["id"] for each in listed} == {"default", made["id"]}
    assert (await interpreter.request("POST", f"/contexts/{made['id']}/restart")).status == 204
    assert await interpreter.text("x", context_id=made["id"]) == "NameError"
    assert await interpreter.text("__import__('os').getcwd()", context_id=made["id"]) == repr(made["cwd"])
    assert (await interpreter.request("DELETE", f"/contexts/{made['id']}")).status == 204
    gone = await interpreter.request("POST", "/execute", {"code": "1", "context_id": made["id"]})
    assert gone.status == 404


async def test_code_of_a_client_that_leaves_is_interrupted_and_state_is_kept(tenant: Tenant) -> None:
    guest = await tenant.create()
    interpreter = Interpreter(guest)
    await interpreter.run("x = 5")
    body = {"code": "print('begun', flush=True)\nwhile True: pass", "env_vars": {"A": "b"}}
    headers = interpreter.headers | interpreter.token
    async with guest.api.session.post(f"{guest.api.url}/execute", headers=headers, json=body) as response:
        assert orjson.loads(await response.content.readline())["text"] == "begun\n"
    async with asyncio.timeout(20):
        assert await interpreter.text("x, __import__('os').environ.get('A')") == "(5, None)"


async def test_session_that_ends_is_an_error_and_the_next_one_is_fresh(tenant: Tenant) -> None:
    interpreter = Interpreter(await tenant.create())
    await interpreter.run("x = 1")
    assert await interpreter.text("import os; os._exit(3)") == "SessionEnded"
    assert await interpreter.text("x") == "NameError"


async def test_what_cannot_be_run_is_refused(tenant: Tenant, other: Tenant) -> None:
    guest, foreign = await tenant.create(), await other.create()
    interpreter = Interpreter(guest)
    for body, said in (
        ({"code": "1", "language": "javascript"}, "not supported"),
        ({"code": 1}, "code must be text"),
        ({"code": "1", "env_vars": {"A": 1}}, "env_vars"),
        ([], "JSON object"),
    ):
        answer = await interpreter.request("POST", "/execute", body)
        assert (answer.status, said in answer.document["message"]) == (400, True), answer
    assert (await interpreter.request("POST", "/contexts", {"cwd": "none"})).status == 400
    assert (await interpreter.request("POST", "/contexts", {"language": "r"})).status == 400
    assert (await interpreter.request("GET", "/nothing")).status == 404
    interpreter.headers["E2B-Traffic-Access-Token"] = foreign.traffic_token
    assert (await interpreter.request("GET", "/contexts")).status == 401
    del interpreter.headers["E2B-Traffic-Access-Token"]
    assert (await interpreter.request("GET", "/contexts")).status == 401


async def test_token_for_ports_does_not_run_code(tenant: Tenant, other: Tenant) -> None:
    guest, foreign = await tenant.create(), await other.create()
    interpreter = Interpreter(guest)
    for token in ({}, {"X-Access-Token": guest.traffic_token}, {"X-Access-Token": foreign.token}):
        interpreter.token = token
        for path in ("/execute", "//execute/"):
            assert (await interpreter.request("POST", path, {"code": "1"})).status == 401
    assert (await interpreter.request("GET", "/contexts")).document == []


async def test_number_of_contexts_is_limited(tenant: Tenant) -> None:
    interpreter = Interpreter(await tenant.create())
    for _ in range(3):
        assert (await interpreter.request("POST", "/contexts", {})).status == 200
    assert (await interpreter.request("POST", "/contexts", {})).status == 429


class TalkativeSession:
    """A session whose code prints many small pieces and does not stop early when it is interrupted."""

    PIECES = 5000

    def __init__(self) -> None:
        self.printed = 0

    async def run(self, code: str, *, stream: Any) -> Execution:
        for _ in range(self.PIECES):
            if (waiting := stream(Output("stdout", b"x"))) is not None:
                await waiting
            self.printed += 1
        return Execution("", "", (), None, truncated=False)

    async def interrupt(self) -> None:
        pass


def talkative() -> tuple[Context, TalkativeSession, AsyncGenerator[dict[str, Any], None]]:
    session = TalkativeSession()
    context = Context(cast("Any", SimpleNamespace(id="a")), "default", "")
    context._session = cast("Any", session)
    return context, session, cast("AsyncGenerator[dict[str, Any], None]", context.execute("", {}))


async def test_code_waits_for_a_client_that_reads_slowly() -> None:
    _, session, events = talkative()
    assert (await anext(events))["text"] == "x"
    assert session.printed < 100
    rest = [event["type"] async for event in events]
    assert rest.count("stdout") == session.printed - 1 == session.PIECES - 1


async def test_code_that_waits_for_a_client_ends_when_it_leaves() -> None:
    context, session, events = talkative()
    await anext(events)
    async with asyncio.timeout(20):
        await events.aclose()
    assert session.printed == session.PIECES
    assert context._session is not None  # the state is kept
