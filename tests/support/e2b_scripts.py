"""Scripts that use the published packages of E2B. Each function runs in the interpreter of the packages (see
``e2b_worker``), so it imports what it needs and asserts by itself. ``p`` is a ``Packages``."""

from __future__ import annotations

from typing import Any


def creates_finds_and_kills(p: Any) -> None:
    box = p.Sandbox.create(metadata={"who": "a b", "test": "life"}, timeout=60)
    query = p.e2b.SandboxQuery(metadata={"who": "a b", "test": "life"})
    try:
        assert box.is_running()
        info = box.get_info()
        assert (info.sandbox_id, info.metadata["who"], info.state.value) == (box.sandbox_id, "a b", "running")
        assert info.cpu_count == 2 and info.memory_mb == 1024, info
        assert [each.sandbox_id for each in p.Sandbox.list(query=query).next_items()] == [box.sandbox_id]
        assert p.Sandbox.list(query=p.e2b.SandboxQuery(metadata={"who": "b"})).next_items() == []
        box.set_timeout(600)
        assert (box.get_info().end_at - info.end_at).total_seconds() > 400
        assert p.Sandbox.connect(box.sandbox_id).commands.run("echo connected").stdout == "connected\n"
        (metrics,) = box.get_metrics()
        assert metrics.mem_used > 0 and metrics.mem_total == 1 << 30, metrics
        error = p.fails("SandboxException", box.pause)
        assert "does not keep memory" in str(error), error
        assert box.is_running()
    finally:
        assert box.kill()
    assert not box.is_running()
    assert not box.kill()
    p.fails("SandboxNotFoundException", box.get_info)
    p.fails("SandboxNotRunningException", box.commands.run, "true")
    assert p.Sandbox.list(query=query).next_items() == []


def lists_in_pages(p: Any) -> None:
    boxes = [p.Sandbox.create(metadata={"test": "pages"}) for _ in range(3)]
    try:
        query = p.e2b.SandboxQuery(metadata={"test": "pages"})
        pages = p.Sandbox.list(query=query, limit=2)
        found = []
        while pages.has_next:
            items = pages.next_items()
            assert len(items) <= 2
            found += [each.sandbox_id for each in items]
        assert sorted(found) == sorted(box.sandbox_id for box in boxes)
    finally:
        for box in boxes:
            box.kill()


def binds_clients(p: Any) -> None:
    """A client has its key and its address from its own arguments instead of the environment."""
    import os

    key, url = os.environ.pop("E2B_API_KEY"), os.environ.pop("E2B_API_URL")
    sandbox_url = os.environ.pop("E2B_SANDBOX_URL")
    try:
        p.fails("AuthenticationException", p.Sandbox.create)
        options = {"api_key": key, "api_url": url, "sandbox_url": sandbox_url}
        for package in (p.e2b, p.interpreter):
            client = p.bound(package.E2B(**options))
            box = client.create(metadata={"test": "bound"}, secure=False)
            try:
                assert box.commands.run("echo here").stdout == "here\n"
                listed = client.list(query=p.e2b.SandboxQuery(metadata={"test": "bound"}))
                assert [each.sandbox_id for each in listed.next_items()] == [box.sandbox_id]
                assert (listed.has_next, listed.next_token) == (False, None)
                if package is p.interpreter:
                    assert box.run_code("20 + 1").text == "21"
            finally:
                assert box.kill()
        p.fails("AuthenticationException", p.bound(p.e2b.E2B(**{**options, "api_key": "e2b_" + "0" * 40})).create)
        for part in (package.E2B(**options).Volume.list, package.E2B(**options).Template.exists):
            try:
                returned = part(*(["base"] if part.__name__ == "exists" else []))
            except Exception as error:  # noqa: BLE001 - each class of the package has exceptions of its own
                assert "not supported" in str(error), (part, error)
            else:
                raise AssertionError(f"{part} returned {returned!r}")
    finally:
        os.environ.update(E2B_API_KEY=key, E2B_API_URL=url, E2B_SANDBOX_URL=sandbox_url)


def pauses_and_resumes(p: Any, template: str) -> None:
    """``template`` has a volume at /data."""
    box = p.Sandbox.create(template, metadata={"test": "pause"}, timeout=300)
    killed = p.Sandbox.create(template, metadata={"test": "pause"}, timeout=300)

    def listed(**more: Any) -> dict[str, str]:
        query = p.e2b.SandboxQuery(metadata={"test": "pause"}, **more)
        return {each.sandbox_id: each.state.value for each in p.Sandbox.list(query=query).next_items()}

    try:
        box.files.write("/data/kept", "of the volume")
        box.files.write("lost", "of the sandbox")
        assert box.pause(mode="filesystem") and killed.pause(mode="filesystem")
        both = {box.sandbox_id: "paused", killed.sandbox_id: "paused"}
        assert listed() == listed(state=[p.e2b.SandboxState.PAUSED]) == both
        assert listed(state=[p.e2b.SandboxState.RUNNING]) == {}
        info = box.get_info()
        assert (info.state.value, info.metadata) == ("paused", {"test": "pause"}), info
        assert not box.is_running()
        assert not box.pause(mode="filesystem"), "it is paused already"
        p.fails("SandboxNotRunningException", box.commands.run, "true")
        assert p.Sandbox.kill(killed.sandbox_id)
        p.fails("SandboxNotFoundException", p.Sandbox.connect, killed.sandbox_id)
        assert listed() == {box.sandbox_id: "paused"}
        again = p.Sandbox.connect(box.sandbox_id, timeout=600)
        assert again.is_running() and listed() == {box.sandbox_id: "running"}
        assert again.files.read("/data/kept") == "of the volume"
        assert not again.files.exists("lost")
        assert again.commands.run("cat /data/kept").stdout == "of the volume"
        assert (again.get_info().end_at - info.end_at).total_seconds() > 200
    finally:
        assert box.kill()
    assert listed() == {}


def runs_commands(p: Any) -> None:
    box = p.Sandbox.create(envs={"FROM_SANDBOX": "yes"})
    try:
        out: list[str] = []
        err: list[str] = []
        done = box.commands.run(
            "echo größe; echo oops >&2; echo $FROM_SANDBOX $FROM_CALL; pwd",
            envs={"FROM_CALL": "too"},
            cwd="/tmp",
            on_stdout=out.append,
            on_stderr=err.append,
        )
        assert (done.stdout, done.stderr, done.exit_code) == ("größe\nyes too\n/tmp\n", "oops\n", 0), done
        assert ("".join(out), "".join(err)) == (done.stdout, done.stderr)
        failed = p.fails("CommandExitException", box.commands.run, "echo no; exit 3")
        assert (failed.exit_code, failed.stdout) == (3, "no\n")
        p.fails("InvalidArgumentException", box.commands.run, "true", cwd="/none")
        p.fails("InvalidArgumentException", box.commands.run, "true", user="root")
        assert box.commands.run("id -u", user="user").exit_code == 0
        p.fails("TimeoutException", box.commands.run, "sleep 60", timeout=0.5)
        assert len(box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000
    finally:
        box.kill()


def runs_commands_in_the_background(p: Any) -> None:
    box = p.Sandbox.create()
    try:
        handle = box.commands.run("read line; echo got $line; cat; exit 2", background=True, stdin=True, timeout=0)
        assert [each.pid for each in box.commands.list()] == [handle.pid]
        again = box.commands.connect(handle.pid)
        box.commands.send_stdin(handle.pid, "it\n")
        box.commands.send_stdin(handle.pid, "rest")
        box.commands.close_stdin(handle.pid)
        for each in (handle, again):
            failed = p.fails("CommandExitException", each.wait)
            assert (failed.exit_code, failed.stdout) == (2, "got it\nrest"), failed
        if p.is_async:
            assert (again.stdout, again.stderr, again.exit_code) == ("got it\nrest", "", 2), again.error
        sleeping = box.commands.run("sleep 600", background=True)
        assert box.commands.kill(sleeping.pid)
        p.fails("CommandExitException", sleeping.wait)
        assert not box.commands.kill(sleeping.pid)
        p.fails("NotFoundException", box.commands.connect, sleeping.pid)
        left = box.commands.run("sleep 600", background=True, timeout=0)
        left.disconnect()
        assert [each.pid for each in box.commands.list()] == [left.pid]
        assert box.commands.connect(left.pid).kill()
    finally:
        box.kill()


def moves_files(p: Any) -> None:
    import io

    box = p.Sandbox.create()
    try:
        files = box.files
        written = files.write("text", "größe\n")
        assert written.path.endswith("/text"), written
        assert files.read("text") == "größe\n"
        content = bytes(range(256)) * 10_000
        files.write("deep/er/binary", content)
        assert bytes(files.read("deep/er/binary", format="bytes")) == content
        assert b"".join(files.read("deep/er/binary", format="stream")) == content
        files.write("zipped", content, gzip=True)
        files.write("streamed", io.BytesIO(content))
        assert box.commands.run("cmp zipped deep/er/binary && cmp streamed deep/er/binary").exit_code == 0
        several = files.write_files([{"path": "one", "data": "1"}, {"path": "/tmp/two", "data": b"2"}])
        assert [each.path.rpartition("/")[2] for each in several] == ["one", "two"]
        assert files.read("/tmp/two") == "2"
        assert files.exists("one") and not files.exists("none")
        assert files.make_dir("dir/sub") and not files.make_dir("dir/sub")
        info = files.rename("one", "dir/moved")
        assert (info.name, info.size, info.type.value) == ("moved", 1, "file"), info
        assert [(each.name, each.type.value) for each in files.list("dir")] == [("moved", "file"), ("sub", "dir")]
        box.commands.run("ln -s moved dir/link; chmod 640 dir/moved")
        link, moved = files.get_info("dir/link"), files.get_info("dir/moved")
        assert link.symlink_target == "moved", link
        assert (moved.permissions, moved.mode) == ("-rw-r-----", 0o640), moved
        files.remove("dir")
        assert not files.exists("dir")
        p.fails("FileNotFoundException", files.read, "none")
        p.fails("FileNotFoundException", files.list, "none")
        p.fails("InvalidArgumentException", files.read, "deep")
    finally:
        box.kill()


def opens_signed_urls(p: Any) -> None:
    import urllib.error
    import urllib.parse
    import urllib.request

    import httpx

    box = p.Sandbox.create()
    try:
        uploaded = httpx.post(box.upload_url("a b.txt"), files={"file": ("x", b"content")})
        assert uploaded.status_code == 200, uploaded.text
        for url in (box.download_url("a b.txt"), box.download_url("a b.txt", use_signature_expiration=600)):
            with urllib.request.urlopen(url) as answer:
                assert answer.read() == b"content"
        expired = httpx.get(box.download_url("a b.txt", use_signature_expiration=-600))
        assert expired.status_code == 401, expired.text
        own = p.e2b.get_signature(path="a b.txt", operation="read", user=None, envd_access_token=box._envd_access_token)
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(box.download_url("a b.txt")).query)
        assert asked["signature"] == [own["signature"]], (asked, own)
        other = httpx.get(box.download_url("a b.txt").replace("a%20b", "other"))
        assert other.status_code == 401, other.text
    finally:
        box.kill()


def opens_a_terminal(p: Any) -> None:
    box = p.Sandbox.create()
    try:
        said = bytearray()
        if p.is_async:
            pty = box.pty.create(size=p.e2b.PtySize(rows=30, cols=100), on_data=said.extend)
        else:
            pty = box.pty.create(size=p.e2b.PtySize(rows=30, cols=100))
        box.pty.send_stdin(pty.pid, b"stty size\n")
        box.pty.resize(pty.pid, p.e2b.PtySize(rows=20, cols=90))
        box.pty.send_stdin(pty.pid, b"stty size; exit 5\n")
        if p.is_async:
            failed = p.fails("CommandExitException", pty.wait)
        else:
            failed = p.fails("CommandExitException", lambda: pty.wait(on_pty=said.extend))
        assert failed.exit_code == 5
        assert b"20 90" in said, bytes(said)
        p.fails("NotFoundException", box.pty.resize, pty.pid, p.e2b.PtySize(rows=1, cols=1))
    finally:
        box.kill()


def refuses_what_is_not_served(p: Any) -> None:
    for options in (
        {"allow_internet_access": False},
        {"network": {"deny_out": ["0.0.0.0/0"]}},
        {"lifecycle": {"on_timeout": "pause"}},
        {"template": "no-such-template"},
    ):
        error = p.fails("SandboxException", lambda given=options: p.Sandbox.create(**given))
        assert "not supported" in str(error) or "no-such-template" in str(error), error
    p.fails("AuthenticationException", lambda: p.Sandbox.create(api_key="e2b_" + "0" * 40))


def sees_none_of(p: Any, sandbox_id: str) -> None:
    """Run with the key of another tenant."""
    assert p.Sandbox.list().next_items() == []
    for call in (p.Sandbox.connect, p.Sandbox.get_info):
        p.fails("SandboxNotFoundException", call, sandbox_id)
    assert not p.Sandbox.kill(sandbox_id)
    p.fails("SandboxNotFoundException", p.Sandbox.set_timeout, sandbox_id, 1)


def creates(p: Any) -> str:
    return str(p.Sandbox.create().sandbox_id)


def kills(p: Any, sandbox_id: str) -> None:
    assert p.Sandbox.kill(sandbox_id)


def watches_directories(p: Any) -> None:
    import time

    box = p.Sandbox.create()
    try:
        box.files.make_dir("watched")
        found: list[Any] = []
        if p.is_async:
            handle = box.files.watch_dir("watched", on_event=found.append, recursive=True, include_entry=True)
        else:
            handle = box.files.watch_dir("watched", recursive=True, include_entry=True)

        def wait_for(kind: str, name: str) -> None:
            end = time.monotonic() + 30
            while (kind, name) not in [(event.type.value, event.name) for event in found]:
                assert time.monotonic() < end, found
                if p.is_async:
                    p.wait(0.05)
                else:
                    found.extend(handle.get_new_events())

        box.commands.run("mkdir watched/d")
        wait_for("create", "d")  # a new directory is watched once it is reported
        box.commands.run("echo x > watched/d/file && rm watched/d/file")
        wait_for("remove", "d/file")
        seen = [(event.type.value, event.name) for event in found if event.type.value != "write"]
        assert seen == [("create", "d"), ("create", "d/file"), ("remove", "d/file")], seen
        assert found[0].entry.name == "d", found[0]
        handle.stop()
        p.fails("FileNotFoundException", box.files.watch_dir, "none", **({"on_event": print} if p.is_async else {}))
    finally:
        box.kill()


def runs_code(p: Any) -> None:
    box = p.Interpreter.create(envs={"A": "b"})
    try:
        printed = []
        done = box.run_code("x = 20; print('größe'); x + 1", on_stdout=lambda message: printed.append(message.line))
        assert (done.text, done.logs.stdout, done.execution_count) == ("21", ["größe\n"], 1), done
        assert printed == ["größe\n"]
        assert box.run_code("import os; os.environ['A'] + str(x)").text == "'b20'"
        error = box.run_code("x / 0").error
        assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
        html = "class H:\n  def _repr_html_(self): return '<b>'\nH()"
        (result,) = box.run_code(html).results
        assert (result.html, result.is_main_result) == ("<b>", True)
        picture = "class P:\n  def _repr_png_(self): return b'\\x89PNG'\ndisplay(P()); display(P()); x"
        found: list[Any] = []
        done = box.run_code(picture, on_result=found.append)
        assert done.text == "20" and len(found) == 3
        assert [(each.png, each.is_main_result) for each in done.results] == [("iVBORw==", False)] * 2 + [(None, True)]
        p.fails("TimeoutException", box.run_code, "while True: pass", timeout=1)
        assert box.run_code("x").text == "20"
        context = box.create_code_context(cwd="/tmp")
        assert context.cwd == "/tmp"
        assert box.run_code("y = 1; __import__('os').getcwd()", context=context).text == "'/tmp'"
        assert box.run_code("y").error.name == "NameError"
        assert len(box.list_code_contexts()) == 2
        box.restart_code_context(context)
        assert box.run_code("y", context=context).error.name == "NameError"
        box.remove_code_context(context)
        p.fails("NotFoundException", box.run_code, "1", context=context)
        p.fails("SandboxException", box.run_code, "1", language="javascript")
        assert box.commands.run("echo and commands").stdout == "and commands\n"
    finally:
        box.kill()


def reaches_ports(p: Any) -> None:
    import time

    import httpx

    box = p.Sandbox.create()
    private = p.Sandbox.create(network={"allow_public_traffic": False})
    try:
        for each in (box, private):
            each.files.write("page/index.html", "hello")
            each.commands.run("cd page && exec python3 -m http.server 8000", background=True, timeout=0)

        def get(of: Any, port: int = 8000, **headers: str) -> Any:
            address = of.envd_api_url
            end = time.monotonic() + 30
            while True:
                answer = httpx.get(address, headers={"Host": of.get_host(port), **headers})
                if answer.status_code != 502 or port != 8000 or time.monotonic() > end:
                    return answer
                time.sleep(0.05)

        assert get(box).text == "hello"
        assert get(box, 8001).status_code == 502
        assert get(private).status_code == 403
        assert get(private, **{"E2B-Traffic-Access-Token": private.traffic_access_token}).text == "hello"
    finally:
        box.kill()
        private.kill()


def streams_input(p: Any) -> None:
    box = p.Sandbox.create()
    try:
        handle = box.commands.run("cat", background=True, stdin=True)
        pieces = [f"{number} " for number in range(20)]
        if p.is_async:

            async def feed() -> None:
                stream = box._inner.commands.stream_input(handle.pid)
                for piece in pieces:
                    await stream.send(piece)
                await stream.close()

            p.loop.run_until_complete(feed())
        else:
            box.commands.stream_input(handle.pid, pieces)
        box.commands.close_stdin(handle.pid)
        assert handle.wait().stdout == "".join(pieces)
        assert box.commands.run("git --version; true").exit_code == 0
    finally:
        box.kill()


def is_told_what_is_missing(p: Any) -> None:
    box = p.Sandbox.create()
    try:
        for call in (
            box.create_snapshot,
            box.fork,
            lambda: box.update_network({"deny_out": ["0.0.0.0/0"]}),
            lambda: p.Sandbox.list_snapshots().next_items(),
            lambda: p.e2b.Volume.create("data"),
            lambda: p.e2b.Secret.list().next_items(),
            lambda: p.e2b.Template.exists("base"),
        ):
            try:
                returned = call()
            except Exception as error:  # noqa: BLE001 - each class of the package has exceptions of its own
                assert "not supported" in str(error), (call, error)
            else:
                raise AssertionError(f"{call} returned {returned!r}")
        metadata = p.fails("InvalidArgumentException", box.files.write, "x", "y", metadata={"a": "b"})
        assert "not supported" in str(metadata), metadata
    finally:
        box.kill()


def serves_many(p: Any, clients: int) -> dict[str, Any]:
    """Clients that all create, run, write, read and kill at the same time. Returns what each of them got."""
    import asyncio
    import time

    async def one(number: int) -> float:
        began = time.monotonic()
        box = await p.e2b.AsyncSandbox.create(metadata={"client": str(number)}, timeout=600, request_timeout=300)
        created = time.monotonic() - began
        try:
            done = await box.commands.run(
                f"echo {number}; cat > /dev/null < /dev/null", request_timeout=300, timeout=300
            )
            assert done.stdout == f"{number}\n", done
            await box.files.write("mine", f"of {number}", request_timeout=300)
            assert await box.files.read("mine", request_timeout=300) == f"of {number}"
            info = await box.get_info(request_timeout=300)
            assert info.metadata == {"client": str(number)}, info
        finally:
            assert await box.kill(request_timeout=300)
        return created

    async def everyone() -> list[Any]:
        return await asyncio.gather(*(one(number) for number in range(clients)), return_exceptions=True)

    found = p.loop.run_until_complete(everyone())
    failures = [f"{type(each).__name__}: {each}"[:300] for each in found if isinstance(each, BaseException)]
    times = sorted(each for each in found if not isinstance(each, BaseException))
    assert p.loop.run_until_complete(p.e2b.AsyncSandbox.list().next_items()) == []
    return {"failures": failures, "served": len(times), "slowest": times[-1] if times else 0.0}
