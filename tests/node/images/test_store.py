from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandpool.node.images.config import ImageConfig
from sandpool.node.images.reference import parse
from sandpool.node.images.store import ROOTFS, ImageInUse, ImageStore, StoredImage

CONFIG = ImageConfig({"A": "b"}, ("/entry",), user="7")


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images", set)


def add(store: ImageStore, name: str, image_id: str = "sha256:1", content: str = "x") -> StoredImage:
    with store.incoming() as incoming:
        (incoming / ROOTFS).mkdir()
        (incoming / ROOTFS / "file").write_text(content)
        return store.add(parse(name), incoming, image_id, CONFIG, "here")


def test_image_is_found_by_its_name(store: ImageStore) -> None:
    stored = add(store, "example.com/a:1")
    assert store.find(parse("example.com/a:1")) == stored
    assert (stored.config, stored.size, stored.source) == (CONFIG, 1, "here")
    assert (stored.layers[0] / "file").read_text() == "x"
    assert store.find(parse("example.com/a:2")) is None


def test_other_users_cannot_enter_the_files_of_images(store: ImageStore) -> None:
    before = add(store, "example.com/a:1")
    with store.building(), store.incoming() as incoming:
        (incoming / ROOTFS).mkdir()
        layer = store.add_layer("key", incoming)
    closed = [before.layers[0].parents[1], layer.parents[1]]
    assert [path.stat().st_mode & 0o777 for path in closed] == [0o700, 0o700]
    for path in closed:
        path.chmod(0o755)  # as earlier versions made them
    store.close_to_others()
    assert [path.stat().st_mode & 0o777 for path in closed] == [0o700, 0o700]


def test_names_of_the_same_image_share_it(store: ImageStore) -> None:
    assert add(store, "a").directory == add(store, "b").directory
    assert list(store.names()) == ["a:latest", "b:latest"]
    assert store.remove(parse("a"))
    assert store.find(parse("b")) is not None
    assert store.remove(parse("b"))
    assert list((store.directory / "images").iterdir()) == []


def test_name_can_move_to_another_image(store: ImageStore) -> None:
    first = add(store, "a", "sha256:1")
    second = add(store, "a", "sha256:2", "y")
    assert store.find(parse("a")) == second
    assert not first.directory.exists()


def test_concurrent_adds_and_removes_keep_named_images(store: ImageStore) -> None:
    """A new image has no name for a moment, and two threads may add the same image."""

    def come_and_go(number: int) -> None:
        for turn in range(50):
            name = f"name-{number % 4}"
            stored = add(store, name, f"sha256:{(number + turn) % 3}")
            assert stored.id == f"sha256:{(number + turn) % 3}"
            if turn % 5 == 0:
                store.remove(parse(name))

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(come_and_go, number) for number in range(8)]:
            done.result()
    named = {image.directory for image in store.names().values()}
    assert set((store.directory / "images").iterdir()) == named
    assert list((store.directory / "incoming").iterdir()) == []


def test_remove_keeps_other_images_under_any_store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in (Path("images"), tmp_path / "link/images"):
        store = ImageStore(name, set)
        add(store, "a", "sha256:1")
        add(store, "b", "sha256:2")
        assert store.remove(parse("a"))
        assert store.names().keys() == {"b:latest"}


def test_missing_image_cannot_be_removed(store: ImageStore) -> None:
    assert not store.remove(parse("a"))


def test_failed_import_leaves_nothing(store: ImageStore) -> None:
    with pytest.raises(RuntimeError), store.incoming() as incoming:
        (incoming / ROOTFS).mkdir()
        raise RuntimeError("disk full")
    assert store.names() == {}
    assert list((store.directory / "incoming").iterdir()) == []


def test_next_import_removes_what_a_killed_one_left_and_no_other(store: ImageStore) -> None:
    abandoned = store.directory / "incoming/1234"
    (abandoned / ROOTFS).mkdir(parents=True)
    with store.incoming() as first, store.incoming() as second:
        assert {first, second} == set((store.directory / "incoming").iterdir())
    assert not abandoned.exists()


def test_image_with_containers_is_kept(store: ImageStore) -> None:
    """Mounts may show the image under another path, as on a separate disk."""
    stored = add(store, "a")
    store.used = lambda: {stored.layers[0]}
    with pytest.raises(ImageInUse, match="a:latest is in use by a running container"):
        store.remove(parse("a"))
    add(store, "a", "sha256:2")
    assert stored.layers[0].exists()
    store.used = set
    add(store, "a", "sha256:3")
    assert not stored.layers[0].exists()


@pytest.mark.isolation
def test_image_in_use_is_kept(store: ImageStore) -> None:
    stored = add(store, "a")
    script = 'mount --bind "$1" /mnt && echo ready && read line'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(stored.layers[0])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with pytest.raises(ImageInUse, match="a:latest is in use by a running container"):
            store.remove(parse("a"))
        process.communicate(b"\n")
    assert store.remove(parse("a"))
