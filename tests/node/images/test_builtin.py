from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandpool.node.images import toolchain
from sandpool.node.images.builtin import BuiltInImages
from sandpool.node.images.reference import parse
from sandpool.node.images.resolver import ImageResolver
from sandpool.node.pods.interfaces import ImageFailure
from sandpool.node.runtimes.runtime import HostToolchain
from tests.support.fake_node_parts import FakeSecrets


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("sandpool.local/python", "/workspace"),
        ("sandpool.local/python:3.12", "/workspace"),
        ("registry.k8s.io/agent-sandbox/python-runtime-sandbox:v0.1.0", "/app"),
        ("us-central1-docker.pkg.dev/k8s-staging-images/agent-sandbox/python-runtime-sandbox:latest-main", "/app"),
    ],
)
def test_built_in_image_needs_no_registry(tmp_path: Path, name: str, directory: str) -> None:
    image = BuiltInImages(tmp_path, set).find(parse(name))
    assert image is not None
    assert isinstance(image.root, HostToolchain)
    assert (image.working_dir, image.env["SANDBOX_BASE_DIR"]) == (directory, directory)
    assert Path(image.command[-1]).parent in image.root.prefixes


@pytest.mark.parametrize("name", ["python", "sandpool.local/ruby", "example.com/python-runtime-sandbox"])
def test_other_names_are_not_built_in(tmp_path: Path, name: str) -> None:
    assert BuiltInImages(tmp_path, set).find(parse(name)) is None


def test_concurrent_first_requests_lay_the_image_out_once(tmp_path: Path) -> None:
    images = BuiltInImages(tmp_path, set)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: images.find(parse("sandpool.local/python")), range(8)))
    assert None not in found
    assert all(image == found[0] for image in found)


@pytest.mark.parametrize("name", ["sandpool.local/sandboxd", "registry.k8s.io/agent-sandbox/sandboxd:latest"])
def test_sandboxd_image_takes_arguments(tmp_path: Path, name: str) -> None:
    pytest.importorskip("grpc")
    image = BuiltInImages(tmp_path, set).find(parse(name))
    assert image is not None
    assert image.command == ()
    assert (Path(image.entrypoint[-1]).parent / "grpc").is_dir()


async def test_sandboxd_image_without_grpc_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(ImageFailure, match=r"install sandpool\[sandboxd\]"):
        await ImageResolver(tmp_path, set, FakeSecrets()).resolve("sandpool.local/sandboxd", "Always", {})


@pytest.fixture
def upgraded(tmp_path: Path) -> Path:
    """A directory with what an older version has laid out."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sandboxd.py").write_text("")
    return tmp_path


def laid_out(directory: Path, used: Callable[[], Collection[Path]] = set) -> set[str]:
    """Return the installed toolchains after a request for an image, except its own."""
    image = BuiltInImages(directory, used).find(parse("sandpool.local/python"))
    assert image is not None
    assert Path(image.command[-1]).is_file()
    return {path.name for path in directory.iterdir()} - {Path(image.command[-1]).parent.name}


def test_toolchain_of_an_older_version_is_removed(upgraded: Path) -> None:
    (upgraded / "outgoing-older").mkdir()
    (upgraded / "incoming-0").mkdir()  # no process has this number
    mine = upgraded / f"incoming-{os.getppid()}"
    mine.mkdir()
    assert laid_out(upgraded) == {mine.name}


def test_toolchain_of_an_older_version_is_kept_while_containers_use_it(upgraded: Path) -> None:
    used = {upgraded / "old"}
    assert laid_out(upgraded, lambda: used) == {"old"}
    used.clear()
    assert laid_out(upgraded, lambda: used) == set()


def test_mounted_toolchain_is_kept(upgraded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "is_mounted", lambda path: path.name == "old")
    assert laid_out(upgraded) == {"old"}


def test_built_in_images_do_not_remove_each_other(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    images = BuiltInImages(tmp_path, set)
    names = ("sandpool.local/python", "sandpool.local/sandboxd", "x/agent-sandbox/python-runtime-sandbox")
    found = [images.find(parse(name)) for name in names]
    assert all(image is not None and Path((*image.entrypoint, *image.command)[-1]).is_file() for image in found)


def test_toolchain_that_cannot_be_removed_is_ignored(upgraded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if path.name.startswith("outgoing-"):
            raise PermissionError(13, "not yours", str(path))
        remove(path, ignore_errors)

    remove = shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        (left,) = laid_out(upgraded)
        assert left.startswith("outgoing-")
    assert laid_out(upgraded) == set()
