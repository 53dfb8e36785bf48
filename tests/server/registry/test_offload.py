"""Large work in a thread: its results, its order between users, and writes that are overtaken."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandpool.kube.client import MergePatch
from sandpool.kube.errors import AlreadyExists, Conflict, Invalid
from sandpool.kube.transport import APPLY_PATCH, MERGE_PATCH
from sandpool.server.api_server import ApiServer
from sandpool.server.auth.groups import authenticated
from sandpool.server.auth.tokens import ADMIN
from sandpool.server.registry import patch as patch_verb
from sandpool.server.registry.offload import SWITCH_SECONDS, OffloadWorker, rejoin_loop
from sandpool.server.request.handler import LARGE_BODY, LARGE_LIST
from sandpool.server.request.messages import Response, ServerRequest

MAPS = "/api/v1/namespaces/default/configmaps"
LARGE = {f"key-{number}": "x" * 50 for number in range(500)}


@pytest.fixture
async def worker() -> AsyncIterator[OffloadWorker]:
    worker = OffloadWorker()
    yield worker
    worker.close()


async def test_work_runs_in_the_thread_and_then_on_the_loop(worker: OffloadWorker) -> None:
    seen: list[bool] = []

    async def work() -> str:
        seen.append(threading.current_thread() is threading.main_thread())
        await rejoin_loop()
        seen.append(threading.current_thread() is threading.main_thread())
        await asyncio.sleep(0)
        return "done"

    assert await worker.run("a", work()) == "done"
    assert seen == [False, True]


async def test_errors_and_early_results_come_through(worker: OffloadWorker) -> None:
    async def broken() -> None:
        raise LookupError

    async def early() -> int:
        return 7

    async def misuse() -> None:
        await asyncio.sleep(1)

    with pytest.raises(LookupError):
        await worker.run("a", broken())
    assert await worker.run("a", early()) == 7
    with pytest.raises(RuntimeError):
        await worker.run("a", misuse())
    assert await worker.call("a", lambda: 1) == 1


async def test_users_take_turns(worker: OffloadWorker) -> None:
    order: list[str] = []
    gate = threading.Event()
    first = asyncio.ensure_future(worker.call("a", lambda: gate.wait(20)))
    await asyncio.sleep(0)
    calls = [asyncio.ensure_future(worker.call("a", lambda: order.append("a"))) for _ in range(5)]
    await asyncio.sleep(0)
    calls.append(asyncio.ensure_future(worker.call("b", lambda: order.append("b"))))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *calls)
    assert order == ["a", "b", "a", "a", "a", "a"]


async def test_cancelled_work_gives_its_turn_to_the_next(worker: OffloadWorker) -> None:
    gate, begun, closed = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        gate.wait(20)
        try:
            await rejoin_loop()
        finally:
            closed.set()

    running = asyncio.ensure_future(worker.run("a", work()))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(worker.call("a", lambda: None))
    await asyncio.sleep(0)
    begun.wait()  # work that has not begun has nothing to close
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    gate.set()
    assert await worker.call("b", lambda: "next") == "next"
    assert closed.is_set(), "abandoned work is closed"


@pytest.mark.parametrize("waiting", [False, True], ids=["running", "waiting for its turn"])
async def test_cancelled_work_is_closed(worker: OffloadWorker, waiting: bool) -> None:
    gate, begun = threading.Event(), threading.Event()
    first = asyncio.ensure_future(worker.call("a", gate.wait)) if waiting else None

    async def work() -> None:
        begun.set()
        gate.wait()
        await rejoin_loop()

    coroutine = work()
    running = asyncio.ensure_future(worker.run("a", coroutine))
    await asyncio.sleep(0)
    if not waiting:
        begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    if first is not None:
        await first
    await worker.call("a", lambda: None)  # the thread has finished what came before
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert begun.is_set() is not waiting


async def test_work_for_a_closed_worker_is_closed(worker: OffloadWorker) -> None:
    worker.close()
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await worker.run("a", coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


async def test_the_loop_gets_the_interpreter_back_quickly(worker: OffloadWorker) -> None:
    before = sys.getswitchinterval()
    assert await worker.call("a", sys.getswitchinterval) == pytest.approx(SWITCH_SECONDS)
    await asyncio.sleep(0)
    assert sys.getswitchinterval() == before


# -- requests ----------------------------------------------------------------------------------------------------------


class Rig:
    def __init__(self, server: ApiServer) -> None:
        self.server = server

    async def send(self, method: str, path: str, body: Any = None, kind: str = "", **query: str) -> Response:
        request = ServerRequest(
            method,
            path,
            authenticated(ADMIN),
            query,
            headers={"content-type": kind or "application/json", "user-agent": "test", "accept": query.pop("as_", "")},
            body=b"" if body is None else orjson.dumps(body),
            offloadable=True,
        )
        return await self.server.handler.handle(request)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    server = ApiServer(tmp_path)
    await server.start()
    yield Rig(server)
    await server.stop()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which writes were prepared and passed to the store."""
    seen: list[str] = []
    from sandpool.server.registry import create as create_verb
    from sandpool.server.registry import update as update_verb
    from sandpool.server.store.store import Store

    def spy(module: object, name: str, name_of: Callable[..., str]) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def spied(*args: Any, **more: Any) -> Any:
            if name_of(*args) in ("a", "b"):  # not what the server writes by itself
                where = "loop" if threading.current_thread() is threading.main_thread() else "thread"
                seen.append(f"{name}: {where}")
            return real(*args, **more)

        monkeypatch.setattr(module, name, spied)

    spy(create_verb, "fit", lambda resource, obj, *_: str(obj["metadata"]["name"]))
    spy(update_verb, "fit", lambda resource, obj, *_: str(obj["metadata"]["name"]))
    spy(Store, "put", lambda store, resource, key, obj: str(key.name))
    return seen


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_large_writes_are_prepared_in_the_thread_and_stored_on_the_loop(rig: Rig, threads: list[str]) -> None:
    assert len(orjson.dumps(LARGE)) > LARGE_BODY
    assert (await rig.send("POST", MAPS, config_map("a", LARGE))).status == 201
    stored = (await rig.send("PUT", f"{MAPS}/a", config_map("a", {**LARGE, "more": ""}))).decode()
    assert stored["data"]["more"] == ""
    applied = await rig.send("PATCH", f"{MAPS}/b", config_map("b", LARGE), APPLY_PATCH, fieldManager="me")
    assert applied.status == 201
    merged = await rig.send("PATCH", f"{MAPS}/b", {"data": LARGE | {"k": "v"}}, MERGE_PATCH)
    assert merged.decode()["data"]["k"] == "v"
    assert threads == ["fit: thread", "put: loop"] * 4


async def test_small_writes_stay_on_the_loop(rig: Rig, threads: list[str]) -> None:
    await rig.send("POST", MAPS, config_map("a", {"k": "v"}))
    await rig.send("PATCH", f"{MAPS}/a", {"data": {"k": "w"}}, MERGE_PATCH)
    assert threads == ["fit: loop", "put: loop"] * 2


async def test_small_patch_of_a_large_object_runs_in_the_thread(rig: Rig, threads: list[str]) -> None:
    await rig.send("POST", MAPS, config_map("a", dict.fromkeys(LARGE, "x" * 100)))
    threads.clear()
    await rig.send("PATCH", f"{MAPS}/a", {"data": {"k": "w"}}, MERGE_PATCH)
    assert threads == ["fit: thread", "put: loop"]


async def test_errors_of_large_writes_are_the_usual_ones(rig: Rig) -> None:
    await rig.send("POST", MAPS, config_map("a", LARGE))
    with pytest.raises(AlreadyExists):
        await rig.send("POST", MAPS, config_map("a", LARGE))
    with pytest.raises(Invalid):
        await rig.send("POST", MAPS, config_map("b", {**LARGE, "not/a/key": ""}))


async def test_overtaken_patch_starts_over(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.send("POST", MAPS, config_map("a", LARGE))
    client = rig.server.client()
    from sandpool.api.kinds import CONFIG_MAP

    attempts = 0
    loop = asyncio.get_running_loop()

    def interfere(*args: Any, real: Any = patch_verb.patcher) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:  # another client changes the object while the thread works on this patch
            change = client.patch(CONFIG_MAP, "a", MergePatch({"data": {"other": "1"}}), "default")
            asyncio.run_coroutine_threadsafe(change, loop).result(20)
        return real(*args)

    monkeypatch.setattr(patch_verb, "patcher", interfere)
    merged = (await rig.send("PATCH", f"{MAPS}/a", {"data": LARGE | {"mine": "1"}}, MERGE_PATCH)).decode()
    assert merged["data"]["other"] == merged["data"]["mine"] == "1", "neither change is lost"
    assert attempts >= 2


async def test_patch_that_is_always_overtaken_is_a_conflict(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.send("POST", MAPS, config_map("a", LARGE))
    monkeypatch.setattr("sandpool.server.registry.context.RegistryContext.is_current", lambda *_: False)
    with pytest.raises(Conflict, match="the object has been modified"):
        await rig.send("PATCH", f"{MAPS}/a", {"data": LARGE | {"k": "v"}}, MERGE_PATCH)


async def test_large_lists_are_rendered_in_the_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    client = rig.server.client()
    from sandpool.api.kinds import CONFIG_MAP

    for number in range(LARGE_LIST + 1):
        await client.create(CONFIG_MAP, config_map(f"m{number:04}", {}), "default")
    calls: list[str] = []
    handler = rig.server.handler
    real = handler._offload.call

    async def count(user: str, function: Callable[[], Any]) -> Any:
        calls.append(user)
        return await real(user, function)

    monkeypatch.setattr(handler._offload, "call", count)
    whole = (await rig.send("GET", MAPS)).decode()
    assert len(whole["items"]) >= LARGE_LIST + 1
    selected = (await rig.send("GET", MAPS, labelSelector="a in (b)")).decode()
    assert selected["items"] == []
    page = (await rig.send("GET", MAPS, limit="10")).decode()
    assert len(page["items"]) == 10
    assert page["metadata"]["remainingItemCount"] == len(whole["items"]) - 10
    assert len(calls) == 3
    assert await client.list(CONFIG_MAP, "default")
    assert len(calls) == 3, "clients in this process use the loop"
