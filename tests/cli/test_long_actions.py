"""Every command that may take long shows a bar, or how long it has taken, in a terminal; pipes stay clean of both.

The commands run with a dependency in their place that does not end before the terminal shows it."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import click
import pytest

from sandpool.cli import progress
from sandpool.cli.main import main
from sandpool.cli.sessions import Target
from sandpool.home.connection import NoTarget

_SHOWN: Final = re.compile(r"\[[#.]{20}\] |\.\.\. \d+ s$")


class _End(click.ClickException):
    """Ends a command when its long part has been seen."""


class StandardError(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        if _SHOWN.search(text):
            self.shown.set()
        return super().write(text)

    def take_long(self, *_: object, **__: object) -> NoReturn:
        """The long part of an action: it ends when a terminal has shown a bar or the elapsed time."""
        if self._is_terminal:
            self.shown.wait(20)
        raise _End("the end of the long part")

    async def take_long_in_loop(self, *_: object, **__: object) -> NoReturn:
        await asyncio.to_thread(self.take_long)
        raise AssertionError


class Scene:
    """What a command under test finds: a service, and modules of which a part is replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stderr: StandardError, directory: Path) -> None:
        self.monkeypatch = monkeypatch
        self.take_long = stderr.take_long
        self.take_long_in_loop = stderr.take_long_in_loop
        self.directory = directory

    def replace(self, module: str, name: str, value: object) -> None:
        self.monkeypatch.setattr(import_module(module), name, value)

    def serve(self, **parts: object) -> None:
        """Let the command talk to this service."""

        def run(target: Target, work: Callable[[Any], Coroutine[Any, Any, Any]], *, start_home: bool = False) -> Any:
            return asyncio.run(work(SimpleNamespace(**parts)))

        self.monkeypatch.setattr(Target, "run", run)


async def _answer(value: object = None) -> Any:
    return value


def _pool(**changed: object) -> SimpleNamespace:
    known = {"updated_ready": 1, "desired": 4, "members": 4, "updated": 1, "strategy": "", "problem": ""}
    return SimpleNamespace(name="python", template="python", rolled_out=False, **{**known, **changed})


def _first_run(scene: Scene) -> list[str]:
    pools = SimpleNamespace(
        list=lambda: _answer([]), ensure=lambda documents: _answer(), wait_ready=scene.take_long_in_loop
    )
    scene.serve(pools=pools)
    return ["run", "true"]


def _run_of_a_template(scene: Scene) -> list[str]:
    pools = SimpleNamespace(
        list=lambda: _answer([]), create=lambda *_: _answer(_pool()), wait_ready=scene.take_long_in_loop
    )
    scene.serve(pools=pools)
    return ["run", "--template", "python", "true"]


def _starting_the_home(scene: Scene) -> list[str]:
    def ensure_running(say: Callable[[str], None]) -> NoReturn:
        say("starting the local home in the background")
        scene.take_long()

    def resolve(*_: object) -> NoReturn:
        raise NoTarget("no home runs")

    scene.replace("sandpool.home.connection", "resolve", resolve)
    scene.replace("sandpool.home.start", "ensure_running", ensure_running)
    return ["claim"]


def _run(scene: Scene) -> list[str]:
    scene.serve(claims=SimpleNamespace(create=scene.take_long_in_loop))
    return ["run", "--pool", "python", "true"]


def _claim(scene: Scene) -> list[str]:
    scene.serve(claims=SimpleNamespace(create=scene.take_long_in_loop))
    return ["claim", "--pool", "python"]


def _pool_that_fills(scene: Scene) -> None:
    async def wait_ready(name: str, count: int, wait: float, ready: Callable[[int], None], failing: object) -> None:
        ready(0)
        await scene.take_long_in_loop()

    scene.serve(
        pools=SimpleNamespace(create=lambda *_: _answer(_pool()), scale=lambda *_: _answer(), wait_ready=wait_ready)
    )


def _pool_create(scene: Scene) -> list[str]:
    _pool_that_fills(scene)
    return ["pool", "create", "python", "--wait", "1m"]


def _pool_scale(scene: Scene) -> list[str]:
    _pool_that_fills(scene)
    return ["pool", "scale", "python", "4", "--wait", "1m"]


def _rollout(scene: Scene) -> list[str]:
    async def states(name: str) -> Any:
        yield _pool(updated_ready=2)
        await scene.take_long_in_loop()

    scene.serve(pools=SimpleNamespace(get=lambda name: _answer(_pool()), states=states))
    return ["pool", "rollout", "python", "--watch"]


def _restart(scene: Scene) -> list[str]:
    async def restart(name: str, replaced: Callable[[int, int], None]) -> None:
        replaced(0, 4)
        await scene.take_long_in_loop()

    scene.serve(pools=SimpleNamespace(restart=restart))
    return ["pool", "rollout", "python", "--restart"]


def _mode(scene: Scene, suspended: bool) -> None:
    box = SimpleNamespace(name="box", suspended=not suspended, asleep=False)
    sandboxes = SimpleNamespace(
        find=lambda name: _answer(box), wait=scene.take_long_in_loop, suspend=lambda name: _answer(box)
    )
    sandboxes.resume = sandboxes.suspend
    scene.serve(sandboxes=sandboxes)


def _suspend(scene: Scene) -> list[str]:
    _mode(scene, suspended=True)
    return ["suspend", "box"]


def _resume(scene: Scene) -> list[str]:
    _mode(scene, suspended=False)
    return ["resume", "box"]


def _copy(scene: Scene) -> list[str]:
    async def upload(*_: object, progress: Callable[[int], None], **__: object) -> None:
        progress(2 << 20)
        await scene.take_long_in_loop()

    (scene.directory / "file").write_bytes(bytes(4 << 20))
    box = SimpleNamespace(name="box")
    scene.serve(
        sandboxes=SimpleNamespace(find=lambda name: _answer(box)), files=SimpleNamespace(upload=upload, download=upload)
    )
    return ["cp", str(scene.directory / "file"), "box:"]


def _up(scene: Scene) -> list[str]:
    def ensure_running(say: Callable[[str], None], **_: object) -> NoReturn:
        say("starting the local home in the background")
        scene.take_long()

    scene.replace("sandpool.home.start", "ensure_running", ensure_running)
    return ["up", "-d"]


def _down(scene: Scene) -> list[str]:
    home = SimpleNamespace(pid=7, data_dir=scene.directory, settings={})
    scene.replace("sandpool.home.discovery", "running", lambda: home)
    scene.replace("sandpool.cli.down", "_stop", scene.take_long)
    return ["down"]


def _doctor(scene: Scene) -> list[str]:
    scene.replace("sandpool.cli.doctor", "examine", scene.take_long)
    return ["doctor"]


def _import(scene: Scene) -> list[str]:
    scene.replace("sandpool.cli.image", "import_image", scene.take_long)
    return ["image", "import", "docker://registry/name:tag", "name", "--data-dir", str(scene.directory)]


def _backup(scene: Scene) -> list[str]:
    def back_up(data_dir: Path, path: Path, clock: object, done: Callable[[int, int], None], **_: object) -> None:
        done(1, 4)
        scene.take_long()

    scene.replace("sandpool.server.store.backup", "back_up_to_file", back_up)
    return ["backup", str(scene.directory / "backup"), "--data-dir", str(scene.directory)]


def _restore(scene: Scene) -> list[str]:
    def restore(source: object, data_dir: Path, done: Callable[[int, int], None], **_: object) -> None:
        done(1, 4)
        scene.take_long()

    (scene.directory / "backup").touch()
    scene.replace("sandpool.server.store.backup", "restore", restore)
    return ["restore", str(scene.directory / "backup"), "--data-dir", str(scene.directory)]


def _bench(scene: Scene) -> list[str]:
    scene.replace("sandpool.cli.bench", "_run", scene.take_long)
    return ["bench", "claims", "single"]


LONG: Final[dict[str, tuple[Callable[[Scene], list[str]], ...]]] = {
    "backup": (_backup,),
    "bench claims": (_bench,),
    "claim": (_claim, _starting_the_home),
    "cp": (_copy,),
    "doctor": (_doctor,),
    "down": (_down,),
    "image import": (_import,),
    "pool create": (_pool_create,),
    "pool rollout": (_rollout, _restart),
    "pool scale": (_pool_scale,),
    "restore": (_restore,),
    "resume": (_resume,),
    "run": (_run, _first_run, _run_of_a_template),
    "suspend": (_suspend,),
    "up": (_up,),
}
#: These print a line for each of their steps while they work.
STEPS: Final = {"demo", "image build", "install", "storage move", "uninstall"}
#: These run until they are ended, or as long as the command in the sandbox.
LASTING: Final = {
    "apiserver", "controller", "dashboard", "e2b serve", "exec", "logs", "mcp", "node", "open", "router", "server",
    "shell", "top",
}  # fmt: skip
#: A few requests, or none.
QUICK: Final = {
    "bench compare", "completion", "context export", "context ls", "context show", "context use", "e2b key create",
    "e2b key list", "e2b key revoke", "image ls", "image rm", "image show", "ls", "pool ls", "pool rm", "release",
    "status", "template create", "template ls", "template rm", "template show", "token", "trace claim",
    "trace sandbox", "version", "why claim", "why object", "why pod", "why pool", "why sandbox", "why template",
}  # fmt: skip


def _commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, (*words, name))
    else:
        yield " ".join(words)


def test_every_command_is_known_as_long_or_not() -> None:
    """A new command belongs into one of the four lists."""
    assert sorted([*LONG, *STEPS, *LASTING, *QUICK]) == sorted(_commands(main))


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize(
    ("command", "prepare"),
    [pytest.param(name, each, id=f"{name}{each.__name__}") for name, found in LONG.items() for each in found],
)
def test_long_action_shows_a_bar_or_the_elapsed_time_in_terminals_alone(
    command: str,
    prepare: Callable[[Scene], list[str]],
    is_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(progress, "_SLOW", 0.0)
    monkeypatch.setattr(progress, "_SECOND", 0.01)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(sys, "stderr", stderr := StandardError(is_terminal))
    arguments = prepare(Scene(monkeypatch, stderr, tmp_path))
    assert " ".join(arguments).startswith(command)
    with pytest.raises(_End):
        main(arguments, standalone_mode=False)
    assert stderr.shown.is_set() is is_terminal
    assert ("\r" in stderr.getvalue()) is is_terminal
    if is_terminal:
        assert stderr.getvalue().endswith("\r\x1b[K"), "the line is removed at the end"
