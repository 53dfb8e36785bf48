from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sandpool.cli.image_build import _listed
from sandpool.cli.main import main
from sandpool.home.discovery import announced
from sandpool.home.users import User
from tests.home.test_discovery import default_dir, home_in
from tests.support.other_user import NoOtherUser, other_user


def run(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["image", *arguments, "--data-dir", str(tmp_path / "data")])


@pytest.mark.isolation
def test_a_built_image_is_listed_shown_and_removed(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('hello')")
    built = run(tmp_path, "build", "mine:1", "--copy", f"{tmp_path}/hello.py:/opt/hello.py", "--env", "A=1")
    assert built.exit_code == 0, built.output
    lines = built.output.splitlines()
    assert lines[0] == "[1/3] FROM python"
    assert lines[1:3] == ["[2/3] ENV A=1", f"[3/3] COPY {tmp_path}/hello.py /opt/hello.py"]
    assert lines[-1].startswith("mine:1   0.0 MB   sha256:")
    assert run(tmp_path, "ls").output.splitlines()[-1].split()[0] == "mine:1"
    shown = json.loads(run(tmp_path, "show", "mine:1").output)
    assert (shown["name"], shown["from"], shown["config"]["env"]) == ("mine:1", "built from python", {"A": "1"})
    assert Path(shown["layers"][0], "opt/hello.py").read_text() == "print('hello')"
    again = run(tmp_path, "build", "mine:1", "--copy", f"{tmp_path}/hello.py:/opt/hello.py", "--env", "A=1")
    assert "    cached" in again.output.splitlines()
    assert run(tmp_path, "rm", "mine:1").exit_code == 0
    assert run(tmp_path, "show", "mine:1").output == "Error: no such image: mine:1; `sandpool image ls` lists them\n"


def test_quiet_build_prints_only_the_id(tmp_path: Path) -> None:
    built = run(tmp_path, "build", "mine", "--env", "A=1", "--quiet")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", built.output)


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM python\nVOLUME /x\n")
    for arguments, message in (
        (("mine",), "nothing to do: use --pip"),
        (("mine", "--copy", "a"), "use SRC:DST with an absolute DST"),
        (("mine", "--env", "A"), "use NAME=VALUE"),
        (("sandpool.local/python", "--pip", "x"), "is a built-in image and cannot be replaced"),
        (("mine", "-f", str(dockerfile), "--pip", "x"), "--file cannot be combined"),
        (("mine", "-f", str(dockerfile)), f"Error: {dockerfile}: line 2: VOLUME is not supported; declare volumes"),
        (("mine", "--copy", f"{tmp_path}/none:/x"), f"Error: COPY {tmp_path}/none: there is no such file"),
        (("mine", "--builder", "buildah", "-f", str(tmp_path / "ok")), "is not installed"),
    ):
        (tmp_path / "ok").write_text("FROM debian\n")
        result = CliRunner(env={"PATH": "/nonexistent"}).invoke(
            main, ["image", "build", *arguments, "--data-dir", str(tmp_path / "data")]
        )
        assert result.exit_code in (1, 2) and message in result.output, result.output
        assert "Traceback" not in result.output


def test_a_user_who_cannot_run_commands_gets_the_line_to_paste() -> None:
    try:
        with other_user() as alice:
            words = ["-m", "sandpool.cli.main", "image", "build", "mine", "--run", "touch /it works"]
            done = subprocess.run(
                alice.command(*words),
                env={"PATH": os.environ["PATH"], "HOME": str(alice.place)},
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
            )
    except NoOtherUser as why:
        pytest.skip(str(why))
    assert done.returncode == 1
    line = shlex.join(["sudo", str(alice.python), *words])
    assert done.stderr.splitlines()[-1] == f"Error: commands of a build run as root only: {line}"


@pytest.fixture
def as_root_for_alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    """The environment of sudo; alice is this user with another home directory, so that no account is needed."""
    alice = User(os.geteuid(), os.getegid(), "alice", tmp_path / "alice")
    alice.home.mkdir()
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "KUBECONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "root"))
    return alice


def build_with_sudo(alice: User, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    with monkeypatch.context() as patch:
        patch.setattr("sandpool.home.users.sudo_caller", lambda environ=None: alice)
        patch.setattr("sys.argv", ["/opt/sandpool"])
        built = CliRunner().invoke(main, ["image", "build", "mine", "--env", "A=1", *options])
    assert built.exit_code == 0, built.output
    return built.output.splitlines()[-1]


def test_an_image_of_root_is_not_seen_by_the_home_of_the_user_who_called_sudo(
    as_root_for_alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, start = as_root_for_alice, "sudo /opt/sandpool up -d"
    assert build_with_sudo(alice, monkeypatch) == f"note: only a home of root sees this image; start it with: {start}"
    environ = {"HOME": str(alice.home)}
    with announced(home_in(default_dir(environ)), environ):
        note = build_with_sudo(alice, monkeypatch)
        assert note.startswith("note: the running home of alice does not see images of root: ")
        assert note.endswith(f" down && {start}`")
        chosen = str(alice.home / "chosen")
        assert build_with_sudo(alice, monkeypatch, "--data-dir", chosen).startswith("mine:latest ")


def test_lists_of_packages_may_have_versions_and_extras() -> None:
    assert _listed(("pandas,numpy>=1,<3", "requests[socks,security]", " a , b ")) == (
        "pandas", "numpy>=1,<3", "requests[socks,security]", "a", "b",
    )  # fmt: skip


def test_a_dockerfile_of_a_registry_image_is_built_by_buildah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of that name that notes how it is called."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "buildah").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" != push ] || exit 1\n')
    (programs / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nRUN true\n")
    result = run(tmp_path, "build", "mine", "-f", str(tmp_path / "Dockerfile"), "--build-arg", "A=1")
    assert result.output.endswith(f"Error: {tmp_path}/Dockerfile: buildah push failed\n")
    built, pushed = (tmp_path / "calls").read_text().splitlines()
    assert built.startswith("build --layers --tag localhost/sandpool-build:")
    assert built.endswith(f"--file {tmp_path}/Dockerfile --build-arg A=1 {tmp_path}")
    assert pushed.split()[0] == "push" and "docker-archive:" in pushed


@pytest.mark.parametrize(("code", "shown"), [(0, ""), (1, "step output\nstep complaint\n")])
def test_quiet_build_shows_the_output_of_buildah_only_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: int, shown: str
) -> None:
    programs, layout = tmp_path / "bin", tmp_path / "layout"
    programs.mkdir()
    layout.mkdir()
    (layout / "file").write_text("x")
    (programs / "buildah").write_text(
        "#!/bin/sh\necho step output\necho step complaint >&2\n"
        f'[ "$1" != push ] || {{ to=${{3#docker-archive:}}; tar -cf "${{to%%:*}}" -C {layout} file; }}\nexit {code}\n'
    )
    (programs / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    (tmp_path / "Dockerfile").write_text("FROM debian:12\nRUN true\n")
    result = run(tmp_path, "build", "mine", "-q", "-f", str(tmp_path / "Dockerfile"))
    assert result.exit_code == code
    assert capfd.readouterr() == ("", ""), "buildah itself writes nothing to the terminal"
    assert result.output.startswith(shown or "sha256:") and ("step output" in result.output) == bool(shown)
