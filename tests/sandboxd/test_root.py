from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.sandboxd.root import PathEscape, Root


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    base = tmp_path / "base"
    (base / "sub").mkdir(parents=True)
    (base / "file").write_text("file")
    (base / "sub/inner").write_text("inner")
    for name, target in (
        ("to-file", "file"),
        ("to-inner", "sub/../sub/inner"),
        ("absolute-in", str(base / "sub/inner")),
        ("absolute-out", str(tmp_path / "outside/secret")),
        ("relative-out", "../outside/secret"),
        ("dir-out", str(tmp_path / "outside")),
        ("loop", "loop"),
        ("broken", "nothing"),
        ("sub/up", "../file"),
    ):
        (base / name).symlink_to(target)
    return base


@pytest.fixture
def root(base: Path) -> Iterator[Root]:
    root = Root(str(base))
    yield root
    root.close()


def read(root: Root, path: str) -> str:
    with os.fdopen(root.open(path)) as file:
        return file.read()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("file", "file"),
        ("/file", "file"),
        ("//file", "file"),
        ("./sub/../file", "file"),
        ("sub/inner", "inner"),
        ("to-file", "file"),
        ("to-inner", "inner"),
        ("absolute-in", "inner"),
        ("sub/up", "file"),
    ],
)
def test_path_below_the_root_is_opened(root: Root, path: str, content: str) -> None:
    assert read(root, path) == content


@pytest.mark.parametrize(
    "path", ["..", "../outside/secret", "sub/../../outside", "/../x", "absolute-out", "relative-out", "dir-out/secret"]
)
def test_path_out_of_the_root_is_rejected(root: Root, path: str) -> None:
    with pytest.raises(PathEscape):
        root.open(path)


@pytest.mark.parametrize("path", ["nothing", "nothing/deeper", "broken", "a\0b"])
def test_missing_path_is_not_found(root: Root, path: str) -> None:
    with pytest.raises(FileNotFoundError):
        root.open(path)


def test_file_as_a_parent_is_rejected(root: Root) -> None:
    with pytest.raises(NotADirectoryError):
        root.open("file/deeper")


def test_loop_of_links_is_rejected(root: Root) -> None:
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        root.open("loop")


def test_last_link_is_not_followed_on_request(root: Root) -> None:
    with root.find("absolute-out", follow=False) as place:
        assert place.name == "absolute-out"


def test_parents_are_created_on_request(root: Root, base: Path) -> None:
    with root.find("new/deep/file", create_parents=True) as place:
        os.close(place.open(os.O_WRONLY | os.O_CREAT))
    assert (base / "new/deep/file").exists()


def test_root_itself_is_a_place(root: Root, base: Path) -> None:
    for path in ("", "/", ".", "sub/.."):
        handle = root.open(path, os.O_RDONLY | os.O_DIRECTORY)
        assert os.fstat(handle).st_ino == base.stat().st_ino
        os.close(handle)


def test_opening_a_fifo_does_not_block(root: Root, base: Path) -> None:
    os.mkfifo(base / "fifo")
    os.close(root.open("fifo"))


def test_swapping_directories_for_links_does_not_escape(root: Root, base: Path, tmp_path: Path) -> None:
    """The race that a check before the use would lose."""
    (base / "turn").mkdir()
    (base / "turn/secret").write_text("harmless")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            os.rename(base / "turn", base / "turn.real")
            os.symlink(tmp_path / "outside", base / "turn")
            os.unlink(base / "turn")
            os.rename(base / "turn.real", base / "turn")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(3000):
            try:
                assert read(root, "turn/secret") == "harmless"
            except (PathEscape, FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                assert error.errno == 40
    finally:
        stop.set()
        thread.join()


NAMES = st.sampled_from(
    ["..", ".", "", "sub", "file", "dir-out", "absolute-out", "relative-out", "to-inner", "loop", "broken", "sub/up"]
)


@given(st.lists(NAMES, max_size=8))
def test_no_path_reaches_a_file_outside(names: list[str]) -> None:
    root = Root(str(_shared()))
    before = len(os.listdir("/proc/self/fd"))
    try:
        handle = root.open("/".join(names))
    except (PathEscape, OSError):
        pass
    else:
        assert os.readlink(f"/proc/self/fd/{handle}").startswith(root.path)
        os.close(handle)
    assert len(os.listdir("/proc/self/fd")) == before, "nothing stays open"
    root.close()


_TREE: list[Path] = []


def _shared() -> Path:
    """One tree for all examples."""
    return _TREE[0]


@pytest.fixture(autouse=True)
def remember(base: Path) -> None:
    _TREE[:] = [base]
