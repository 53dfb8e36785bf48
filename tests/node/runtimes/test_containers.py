"""Containers of every runtime, seen from inside."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.runtime import (
    Bind,
    Command,
    ContainerSpec,
    DataFile,
    HostToolchain,
    NoSuchCommand,
    RuntimeFailure,
    Scratch,
    Stdio,
    Tmpfs,
)
from sandpool.testing.waiting import until
from tests.support.isolation import Rig

pytestmark = pytest.mark.isolation


async def sh(boxes: Rig, script: str, **spec: object) -> str:
    """Run a script in a new container, expect success, and return its output."""
    result, output, errors = await boxes.run("sh", "-c", script, **spec)
    assert (result.code, errors) == (0, "")
    return output


async def test_probe_succeeds_and_leaves_no_pod(boxes: Rig) -> None:
    assert await boxes.runtime.probe() is None
    assert await boxes.runtime.pods() == set()


async def test_container_has_exactly_the_spec(boxes: Rig) -> None:
    output = await sh(boxes, "pwd; id -u; id -g; hostname; env", env={"A": "b c"}, cwd="/tmp", uid=1234, gid=77)
    lines = output.splitlines()
    assert lines[:4] == ["/tmp", "1234", "77", "box"]
    assert set(lines[4:]) == {
        "A=b c", "PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8", "PWD=/tmp",
    }  # fmt: skip


async def test_user_has_a_name(boxes: Rig) -> None:
    assert await sh(boxes, "whoami; id -gn", uid=0, gid=0) == "root\nroot\n"
    assert await sh(boxes, "whoami; id -gn") == "sandbox\nsandbox\n"


@pytest.mark.parametrize("code", [0, 1, 42])
async def test_exit_code_is_reported(boxes: Rig, code: int) -> None:
    result, _, _ = await boxes.run("sh", "-c", f"exit {code}")
    assert (result.code, result.oom_killed, result.message) == (code, False, "")


async def test_signal_becomes_an_exit_code(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    await container.signal(signal.SIGKILL)
    assert (await container.wait()).code == 128 + signal.SIGKILL
    await container.signal(signal.SIGTERM)
    assert container.pid is None


async def test_signal_can_be_handled(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done")
    await boxes.output_of(container).until("ready")
    await container.signal(signal.SIGTERM)
    assert (await container.wait()).code == 7


@pytest.mark.parametrize("argv", [("no-such-program",), ("/no/such/program",)])
async def test_missing_program_is_an_error(boxes: Rig, argv: tuple[str, ...]) -> None:
    with pytest.raises(NoSuchCommand, match=argv[0]):
        await boxes.start(*argv)


async def test_missing_working_directory_is_created(boxes: Rig) -> None:
    result, output, _ = await boxes.run("sh", "-c", "pwd; echo mine > file; cat file", cwd="/work/here")
    assert (result.code, output) == (0, "/work/here\nmine\n")


async def test_program_that_cannot_be_executed_is_an_error(boxes: Rig) -> None:
    with pytest.raises(RuntimeFailure, match=r"(?i)permission denied"):
        await boxes.start("/etc/passwd", captured=False)


async def test_background_processes_end_with_the_program(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & exit 5")
    assert (await container.wait()).code == 5
    assert boxes.cgroups.group(container.pod_uid, "main").processes() == []


async def test_kill_ends_a_container_that_ignores_signals(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done")
    await boxes.output_of(container).until("ready")
    await container.kill()
    assert (await container.wait()).code == 137


async def test_paused_container_does_not_run_and_can_be_killed(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "while :; do :; done")
    await container.pause()
    assert await container.is_paused()
    before = (await container.usage()).cpu_nanoseconds
    await asyncio.sleep(0.05)
    assert (await container.usage()).cpu_nanoseconds == before
    nothing = Stdio(0, 1, 2)
    with pytest.raises(RuntimeFailure, match="is paused"):
        await container.execute(Command(("true",)), nothing)
    await container.resume()
    assert not await container.is_paused()
    await container.pause()
    await container.kill()
    assert (await container.wait()).code == 137


async def test_oom_kill_ends_the_container_and_is_reported(boxes: Rig) -> None:
    # Beside v1 the kernel kills one process, and the node the others a moment later.
    hog = "sleep 1000 & python3 -c 'x = bytearray(200 << 20)'; sleep 1000; echo survived"
    result, output, _ = await boxes.run("sh", "-c", hog, limits=Limits(memory=64 << 20, pids=64))
    assert (result.code, result.oom_killed, output) == (137, True, "")


async def test_files_in_memory_count_as_memory(boxes: Rig) -> None:
    # Beside v1 the kernel ends who fills it, and we the others: a moment later, so they have to be there for longer.
    fill = "head -c 100M /dev/zero > /tmp/big; sleep 100; echo survived"
    result, output, _ = await boxes.run("sh", "-c", fill, limits=Limits(memory=64 << 20))
    assert result.oom_killed and "survived" not in output


async def test_writable_paths_are_bounded(boxes: Rig) -> None:
    scratch = Scratch(size=1 << 20)
    for place in ("/tmp/x", "/home/x", "/dev/shm/x"):
        _, _, errors = await boxes.run("sh", "-c", f"head -c 80M /dev/zero > {place}", scratch=scratch)
        assert "No space left" in errors, place
    _, _, errors = await boxes.run("sh", "-c", "echo > /dev/x", scratch=scratch)
    assert "Read-only file system" in errors or "Permission denied" in errors


async def test_read_only_root_is_enforced(boxes: Rig) -> None:
    mounts = (Tmpfs("/tmp", 1 << 20),)
    output = await sh(
        boxes, "echo x > /tmp/x; touch /x 2>&1; touch /etc/x 2>&1; true", read_only_root=True, mounts=mounts
    )
    assert output.count("Read-only file system") == 2


async def test_mounts_have_their_modes(boxes: Rig) -> None:
    pod = await boxes.pod()
    shared, private = pod.directory / "shared", pod.directory / "private"
    for directory in (shared, private):
        directory.mkdir(mode=0o700)
        os.chown(directory, pod.host_uid, pod.host_gid)
        (directory / "in").write_text(directory.name)
        (directory / "in").chmod(0o644)
    mounts = (
        Bind(shared, "/data/shared"),
        Bind(private, "/data/private", read_only=True),
        Tmpfs("/cache", 1 << 20),
        DataFile("/etc/app/config", b"answer=42", 0o400),
        Bind(shared / "in", "/one-file", read_only=True),
        Tmpfs("/dev/shm", 2 << 20),
        DataFile("/data/shared/nested", b"deep"),
    )
    script = """
        cat /data/shared/in /data/private/in /etc/app/config /one-file /data/shared/nested; echo
        echo made > /data/shared/out && echo x > /cache/x
        (echo x > /data/private/out) 2>/dev/null || echo refused
        (echo x > /one-file) 2>/dev/null || echo refused
        df --output=size -k /cache /dev/shm | tail -n 2 | tr -d ' '
    """
    output = await sh(boxes, script, pod=pod, mounts=mounts)
    assert output.split() == ["sharedprivateanswer=42shareddeep", "refused", "refused", "1024", "2048"]
    made = shared / "out"
    assert made.read_text() == "made\n" and made.stat().st_uid == pod.host_uid


async def test_mounts_over_proc_are_rejected(boxes: Rig) -> None:
    with pytest.raises(RuntimeFailure, match="nothing can be mounted at /proc/sys"):
        await boxes.start("true", mounts=(Tmpfs("/proc/sys", 1 << 20),))


async def test_missing_mount_source_is_an_error(boxes: Rig) -> None:
    with pytest.raises(RuntimeFailure, match="cannot mount /no/such: No such file"):
        await boxes.start("true", mounts=(Bind(Path("/no/such"), "/x"),))


async def test_host_prefixes_are_mounted_read_only(boxes: Rig, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho it works\n")
    for path in (tmp_path, tmp_path / "tool"):
        path.chmod(0o755)
    root = HostToolchain((tmp_path,))
    assert await sh(boxes, f"{tmp_path}/tool", root=root) == "it works\n"
    result, _, _ = await boxes.run("touch", f"{tmp_path}/x", root=root)
    assert result.code == 1


async def test_hostname_and_resolv_conf_are_set(boxes: Rig) -> None:
    pod = await boxes.pod(hostname="alice")
    assert await sh(boxes, "cat /etc/hostname; hostname; cat /etc/resolv.conf", pod=pod) == "alice\nalice\n"


async def test_containers_of_a_pod_share_the_user_and_no_processes(boxes: Rig) -> None:
    pod = await boxes.pod()
    first = await boxes.start("sleep", "100", pod=pod, name="first")
    assert await sh(boxes, "pgrep sleep || echo none", pod=pod, name="second") == "none\n"
    assert first.pid is not None


async def test_stdin_is_forwarded(boxes: Rig) -> None:
    assert await sh(boxes, "cat; echo end") == "end\n"
    container = await boxes.start("cat", stdin=True)
    stdin = os.open(container.directory / "stdin", os.O_WRONLY)
    os.write(stdin, b"hello\n")
    os.close(stdin)
    await boxes.output_of(container).until("hello\n")
    await container.kill()


async def test_container_has_a_terminal(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "test -t 0 && test -t 1 && stty size && read x && echo got $x", tty=True)
    assert container.terminal is not None
    os.write(container.terminal, b"word\n")
    assert (await container.wait()).code == 0
    os.set_blocking(container.terminal, False)
    said = b""

    async def shown() -> bool:
        """The kernel may deliver the output in pieces, and after the end of the program."""
        nonlocal said
        with suppress(OSError):
            said += os.read(container.terminal or -1, 4096)
        return b"got word" in said

    await until(shown)
    assert b"24 80" in said


async def test_command_has_a_named_terminal(boxes: Rig) -> None:
    """The terminal has a path inside, can be opened again, and belongs to the container's user."""
    container = await boxes.start("sleep", "1000")
    terminal = container.open_terminal()
    named = "" if boxes.has_own_kernel else "tty; stat -c %u $(tty); echo by its name > $(tty);"
    script = f"{named} echo by its place > /dev/tty; stty size; read x; echo got $x"
    command = Command(("sh", "-c", script), tty=True)
    process = await container.execute(command, Stdio(terminal.theirs, terminal.theirs, terminal.theirs))
    os.close(terminal.theirs)
    os.write(terminal.ours, b"word\n")
    assert await process.wait() == 0
    os.set_blocking(terminal.ours, False)
    shown = b""
    with suppress(OSError):  # EIO: all writers have closed the terminal
        while True:
            shown += os.read(terminal.ours, 4096)
    os.close(terminal.ours)
    said = shown.decode().split("\r\n")
    assert {"by its place", "24 80", "got word"} <= set(said)
    assert boxes.has_own_kernel or {"/dev/pts/0", "1000", "by its name"} <= set(said)
    await container.kill()
    with pytest.raises(RuntimeFailure, match="does not run"):
        container.open_terminal()


async def test_commands_run_in_the_container(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100", env={"WHO": "me"}, cwd="/tmp", uid=4321)
    assert await boxes.execute(container, "sh", "-c", "echo $WHO; pwd; id -u; exit 3") == (3, "me\n/tmp\n4321\n")
    env = {"PATH": "/usr/bin:/bin", "WHO": "you"}
    assert await boxes.execute(container, "sh", "-c", "echo $WHO; pwd", env=env, cwd="/etc") == (0, "you\n/etc\n")
    _, processes = await boxes.execute(container, "ps", "-eo", "args")
    assert "sleep 100" in processes
    assert await boxes.execute(container, "sh", "-c", "kill -9 $$") == (137, "")


async def test_command_that_cannot_be_executed_is_an_error(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    for argv, why in ((("none",), "not found in .PATH"), (("/none",), "no such file"), (("/etc/passwd",), "denied")):
        with pytest.raises(NoSuchCommand, match=why):
            await boxes.execute(container, *argv)
    with pytest.raises(NoSuchCommand, match="no such working directory: /none"):
        await boxes.execute(container, "true", cwd="/none")


async def test_failing_commands_do_not_harm_the_launcher(boxes: Rig) -> None:
    """A command may fail before its process ID is known."""
    container = await boxes.start("sleep", "100")
    launcher = boxes.launcher.pid
    for _ in range(60):
        with pytest.raises(NoSuchCommand):
            await boxes.execute(container, "/etc/passwd")
    assert boxes.launcher.pid == launcher


async def test_command_ends_with_its_container(boxes: Rig) -> None:
    container = await boxes.start("sleep", "100")
    nothing = os.open("/dev/null", os.O_RDWR)
    process = await container.execute(Command(("sleep", "100")), Stdio(nothing, nothing, nothing))
    other = await container.execute(Command(("sleep", "100")), Stdio(nothing, nothing, nothing))
    os.close(nothing)
    await other.signal(signal.SIGINT)
    assert await other.wait() == 130
    await container.kill()
    assert await process.wait() == 137
    with pytest.raises(RuntimeFailure, match="does not run"):
        await container.execute(Command(("true",)), Stdio(0, 1, 2))


async def test_pids_limit_is_enforced(boxes: Rig) -> None:
    bomb = "for i in $(seq 100); do sleep 100 & done; echo made"
    limits = Limits(pids=16, memory=64 << 20)
    allowed = boxes.runtime.limits(limits).pids
    container = await boxes.start("bash", "-c", bomb, limits=limits)
    usage = await container.usage()
    assert allowed is not None and usage.pids <= allowed
    await container.kill()


async def test_threads_can_be_started(boxes: Rig) -> None:
    """Libraries try new system calls first and fall back to older ones only on the right error."""
    script = "import threading; t = threading.Thread(target=print, args=('ran',)); t.start(); t.join()"
    _, output, errors = await boxes.run("python3", "-c", script)
    assert output == "ran\n", errors
    container = await boxes.start("sleep", "100")
    assert await boxes.execute(container, "python3", "-c", script) == (0, "ran\n")


async def test_open_files_are_limited(boxes: Rig) -> None:
    assert await sh(boxes, "ulimit -n", nofile=64) == "64\n"
    container = await boxes.start("sleep", "100", nofile=64)
    assert await boxes.execute(container, "sh", "-c", "ulimit -n") == (0, "64\n")


async def test_output_is_kept_until_it_is_read(boxes: Rig) -> None:
    container = await boxes.start("sh", "-c", "echo one; echo two >&2", captured=False)
    assert (await container.wait()).code == 0
    captured = boxes.drain(container)
    assert captured.stdout == b"one\n" and captured.stderr == b"two\n"


async def test_container_never_runs_as_host_root(boxes: Rig) -> None:
    pod = await boxes.pod()
    spec = ContainerSpec("main", ("true",), env={"PATH": "/bin"})
    container = await boxes.runtime.create(type(pod)(pod.uid, pod.directory, 0, 0, None, "box"), spec)
    with pytest.raises(RuntimeFailure, match="never runs as root"):
        await container.start()
    await container.delete()


async def test_variable_with_a_zero_byte_is_rejected(boxes: Rig) -> None:
    with pytest.raises(RuntimeFailure, match="zero byte"):
        await boxes.start("true", env={"A": "b\0--bind\0/\0/host"})


async def test_many_commands_run_at_once(boxes: Rig) -> None:
    """More than the launcher's socket holds."""
    container = await boxes.start("sleep", "100", limits=Limits(pids=2000))
    results = await asyncio.gather(*(boxes.execute(container, "true") for _ in range(40)))
    assert results == [(0, "")] * 40


async def test_container_can_be_deleted_while_it_starts(boxes: Rig) -> None:
    pod = await boxes.pod()
    for delay in range(8):
        spec = ContainerSpec("main", ("sleep", "100"), env={"PATH": "/usr/bin:/bin"})
        container = await boxes.runtime.create(pod, spec)
        starting = asyncio.create_task(container.start())
        await asyncio.sleep(delay * 0.004)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await container.delete()
        assert boxes.cgroups.group(pod.uid).children() == []


async def test_programs_start_with_default_signals(boxes: Rig) -> None:
    """Python ignores some signals, and children inherit that: with SIGPIPE ignored ``yes | head`` never ends."""
    show = "grep -E 'Sig(Blk|Ign)' /proc/self/status; cat /proc/self/oom_score_adj"
    expected = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n500\n"
    if boxes.runtime.name == "gvisor":
        expected = "0\n"  # gVisor's kernel reports no signal masks and no OOM score
    assert await sh(boxes, show) == expected
    container = await boxes.start("sleep", "100")
    assert await boxes.execute(container, "sh", "-c", show) == (0, expected)
    assert await boxes.execute(container, "sh", "-c", "yes | head -n 1") == (0, "y\n")


async def test_container_name_can_be_reused(boxes: Rig) -> None:
    pod = await boxes.pod()
    for word in ("first", "second"):
        assert await sh(boxes, f"echo {word}", pod=pod) == f"{word}\n"
