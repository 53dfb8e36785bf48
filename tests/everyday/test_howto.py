"""The commands and files of the how-to pages, typed and saved as they are there."""

from __future__ import annotations

import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from tests.support.playground import WITHIN, Playground, playground
from tests.support.tiny_image import copy_programs
from tests.support.typed_commands import Block, Shown, blocks, succeed, typed, typing_user

pytestmark = [
    pytest.mark.isolation,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    with playground(tmp_path_factory.mktemp("howto")) as running:
        typing_user(running)
        yield running


def save(home: Playground, name: str, block: Block) -> None:
    (home.directory / name).write_text(block.text)


def merged(base: object, changes: object) -> object:
    """A manifest with the fields of a fragment, as a reader would type them into it."""
    if not (isinstance(base, dict) and isinstance(changes, dict)):
        return changes
    return {**base, **{name: merged(base.get(name), value) for name, value in changes.items()}}


def type_one(home: Playground, command: str) -> Shown:
    (shown,) = typed(home, command)
    return shown


def test_environment(home: Playground) -> None:
    one_command, secret, all_sandboxes = blocks("docs/howto/environment.md")
    assert succeed(home, one_command)[-1][-1] == "hello"
    save(home, "secret.yaml", secret)
    assert succeed(home, all_sandboxes)[-1][-1] == "s3cret"


def test_images(home: Playground) -> None:
    own, dockerfile, annotation = blocks("docs/howto/images.md")
    copy_programs(home.directory / "rootfs", "/bin/sh", "/usr/bin/id", "/bin/ls")
    assert any(line.startswith("uid=") for line in succeed(home, own)[-1])
    (home.directory / "Dockerfile").write_text("FROM python\nARG VERSION\nRUN echo $VERSION >/version\n")
    succeed(home, dockerfile)
    succeed(home, Block("", "sandpool image show mine"))
    assert yaml.safe_load(annotation.text)


def test_internet(home: Playground) -> None:
    offline, everything, some, attempt = blocks("docs/howto/internet.md")
    base = yaml.safe_load(offline.text)
    for name, changes in (
        ("offline", {}),
        ("online", yaml.safe_load(everything.text)),
        ("some", yaml.safe_load(some.text)),
    ):
        template = merged(merged(base, changes), {"metadata": {"name": name}})
        (home.directory / f"{name}.yaml").write_text(yaml.safe_dump(template))
        succeed(home, Block("", f"kubectl apply -f {name}.yaml"))
    (command,) = attempt.text.splitlines()
    shown = type_one(home, command)
    assert shown.code == 1
    assert "urllib.error.URLError" in shown.lines[-1]


def test_volumes_and_suspend(home: Playground) -> None:
    template, use, _ = blocks("docs/howto/volumes.md")
    save(home, "volume.yaml", template)
    assert any("2.0G" in line for line in succeed(home, use)[-1])
    succeed(home, Block("", "sandpool release session"))
    suspended, sleeper = blocks("docs/howto/suspend.md")
    _, _, listed, _, kept, _ = succeed(home, suspended)
    assert any("Suspended" in line for line in listed)
    assert kept == ["kept"]
    succeed(home, sleeper)


def test_long_sessions(home: Playground) -> None:
    (session,) = blocks("docs/howto/long-sessions.md")
    results = succeed(home, session)  # the shell ends at once: there is no input
    assert results[2] == ["state"]


def test_forgotten_claims(home: Playground) -> None:
    defaults, removal, limits, third, refusal, end = blocks("docs/howto/forgotten-claims.md")
    *_, explained = succeed(home, defaults)
    assert any("expires" in line for line in explained)
    succeed(home, removal)
    succeed(home, limits)
    shown = type_one(home, third.text.strip())
    assert (shown.code, shown.lines[:-1]) == (1, refusal.text.splitlines())
    succeed(home, end)


def test_late_binding(home: Playground) -> None:
    template, ours, _, _ = blocks("docs/howto/late-binding.md")
    save(home, "tasks.yaml", template)
    succeed(home, Block("", "kubectl apply -f tasks.yaml\nsandpool pool scale tasks 1 --wait 60s"))
    program = f"import sandpool\ntoken = 't'\n{ours.text}    print(sb.run('echo $TASK').stdout, end='')\n"
    (home.directory / "late.py").write_text(program)
    shown = type_one(home, f"{home.command()[0]} late.py")
    assert (shown.lines, shown.code) == (["42"], 0)


def test_web_server(home: Playground) -> None:
    serve, end = blocks("docs/howto/web-server.md")
    *made, opened = serve.text.splitlines()
    succeed(home, Block("", "\n".join(made)))
    assert opened == "sandpool open web 8000"
    # The server starts in the background, so a first request may come too early.
    listening = "import socket, time\nwhile socket.socket().connect_ex(('127.0.0.1', 8000)): time.sleep(0.05)"
    home.works("exec", "web", "--", "python3", "-c", listening)
    command = home.command(*opened.split()[1:])
    with subprocess.Popen(
        command, env=home.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/index.html", timeout=WITHIN) as answer:
            assert answer.read() == b"hello\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 0
    succeed(home, end)


@pytest.mark.long
def test_parallel(home: Playground) -> None:
    run, program = blocks("docs/howto/parallel.md")
    succeed(home, Block("", "sandpool run -- true"))  # makes the pool that is scaled
    results = [int(line) for line in succeed(home, run)[-1] if line.isdecimal()]  # beside what a wait for the pool says
    assert sorted(results) == [number**2 for number in range(1, 101)]
    (home.directory / "squares.py").write_text(program.text)
    shown = type_one(home, f"{home.command()[0]} squares.py")
    assert (shown.lines, shown.code) == ([str([number**2 for number in range(1, 101)])], 0)
