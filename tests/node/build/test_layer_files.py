from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandpool.node.build.layer_files import Context, LayerWriter, take_writes
from sandpool.node.build.recipe import BuildFailure
from sandpool.node.pods.identity import Identity

ME = os.getuid(), os.getgid()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    directory = tmp_path / "context"
    (directory / "src/pkg").mkdir(parents=True)
    (directory / "src/pkg/a.py").write_text("a")
    (directory / "src/main.py").write_text("main")
    (directory / "src/link").symlink_to("main.py")
    (directory / "src/cache.pyc").write_text("x")
    (directory / ".dockerignore").write_text("# comment\n**/*.pyc\nsecret\n")
    (directory / "secret").write_text("x")
    return Context(directory)


def copied(tmp_path: Path, context: Context, source: str, target: str, *below: Path, working_dir: str = "/") -> Path:
    root = tmp_path / "layer"
    LayerWriter(root, below, *ME).copy(context, context.find(source), target, working_dir)
    return root


def test_the_content_of_a_directory_is_copied(tmp_path: Path, context: Context) -> None:
    root = copied(tmp_path, context, "src", "/opt/app")
    assert (root / "opt/app/pkg/a.py").read_text() == "a"
    assert os.readlink(root / "opt/app/link") == "main.py"
    assert not (root / "opt/app/cache.pyc").exists(), "it is listed in .dockerignore"


@pytest.mark.parametrize(
    ("target", "place"),
    [("/opt/x", "opt/x"), ("/opt/", "opt/main.py"), ("y", "srv/y"), (".", "srv/main.py"), ("/there", "there/main.py")],
)
def test_a_file_gets_its_name_or_goes_into_a_directory(
    tmp_path: Path, context: Context, target: str, place: str
) -> None:
    (tmp_path / "below/there").mkdir(parents=True)
    root = copied(tmp_path, context, "src/main.py", target, tmp_path / "below", working_dir="/srv")
    assert (root / place).read_text() == "main"


def test_links_of_the_image_are_followed_inside_of_it(tmp_path: Path, context: Context) -> None:
    below = tmp_path / "below"
    (below / "usr/bin").mkdir(parents=True)
    (below / "usr/bin").chmod(0o750)
    (below / "bin").symlink_to("usr/bin")
    (below / "out").symlink_to("/../../usr/bin")
    for target in ("/bin/", "/out/"):
        root = copied(tmp_path, context, "src/main.py", target, below)
        assert (root / "usr/bin/main.py").exists()
        assert not (root / "bin").is_symlink() and not (root / "out").exists()
        assert (root / "usr/bin").stat().st_mode & 0o777 == 0o750, "as in the image"


def test_a_digest_changes_with_content_name_and_mode(context: Context) -> None:
    def digest() -> str:
        return context.digest(context.find("src"))

    before = digest()
    (context.directory / "src/cache.pyc").write_text("changed but ignored")
    assert digest() == before
    (context.directory / "src/main.py").chmod(0o755)
    changed = digest()
    (context.directory / "src/main.py").write_text("changed")
    assert len({before, changed, digest()}) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [("../x", "is outside of"), ("nothing", "there is no such file"), ("secret", "there is no such file")],
)
def test_sources_outside_the_context_are_rejected(context: Context, source: str, message: str) -> None:
    with pytest.raises(BuildFailure, match=message):
        context.find(source)


def test_several_files_need_a_directory(tmp_path: Path, context: Context) -> None:
    with pytest.raises(BuildFailure, match="has to be a directory"):
        copied(tmp_path, context, "src/*", "/x")


def test_linked_etc_of_a_build_step_leads_to_no_file_of_the_machine(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "passwd").write_text("mine")
    upper = tmp_path / "scratch" / "upper"
    upper.mkdir(parents=True)
    (upper / "etc").symlink_to(victim)
    take_writes(tmp_path / "scratch", tmp_path / "layer", 12345, Identity(*ME), toolchain=True)
    assert (victim / "passwd").read_text() == "mine"


def test_source_behind_a_link_out_of_the_context_is_refused(context: Context, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    (context.directory / "out").symlink_to(tmp_path)
    for source in ("out/secret", "out/sec*"):
        with pytest.raises(BuildFailure, match="a link leads out of"):
            context.find(source)
