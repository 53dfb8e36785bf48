from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Barrier, Event

import pytest

from sandpool.node.images import sources
from sandpool.node.images.builtin import PYTHON
from sandpool.node.images.config import ImageConfig
from sandpool.node.images.reference import Reference, parse
from sandpool.node.images.resolver import ImageResolver, import_image
from sandpool.node.images.sources import SourceFailure, Unpacked
from sandpool.node.images.store import ROOTFS, StoredImage
from sandpool.node.pods.interfaces import ImageFailure
from sandpool.node.runtimes.runtime import HostToolchain, ImageLayers
from tests.support.fake_node_parts import FakeSecrets, pull_secret, pulling_pod

LOGIN = pull_secret("login", {"example.com": {"auth": "b25l"}})


class Registry:
    """Stands in for skopeo: knows one image, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.logins: list[bytes] = []

    def unpack(self, source: str, directory: Path, credentials_file: bytes = b"") -> Unpacked:
        self.asked.append(source)
        self.logins.append(credentials_file)
        if "missing" in source:
            raise SourceFailure("skopeo: manifest unknown")
        (directory / ROOTFS).mkdir()
        return Unpacked(f"sha256:{len(self.asked)}", ImageConfig(entrypoint=("/entry",)))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(sources, "unpack", registry.unpack)
    return registry


@pytest.fixture
def images(tmp_path: Path) -> ImageResolver:
    return ImageResolver(tmp_path / "images", set, FakeSecrets(LOGIN))


async def test_host_python_is_always_available(images: ImageResolver) -> None:
    for name in (PYTHON, f"{PYTHON}:3.12"):
        image = await images.resolve(name, "Always", {})
        assert isinstance(image.root, HostToolchain)
        assert not image.pulled


async def test_image_is_pulled_once(images: ImageResolver, registry: Registry) -> None:
    first = await images.resolve("example.com/a:1", "IfNotPresent", {})
    assert (first.pulled, first.entrypoint) == (True, ("/entry",))
    assert isinstance(first.root, ImageLayers)
    assert not (await images.resolve("example.com/a:1", "IfNotPresent", {})).pulled
    assert registry.asked == ["docker://example.com/a:1"]


async def test_concurrent_requests_pull_once(images: ImageResolver, registry: Registry) -> None:
    await asyncio.gather(*(images.resolve("example.com/a", "IfNotPresent", {}) for _ in range(20)))
    assert len(registry.asked) == 1


async def test_pulls_of_one_namespace_leave_room_for_others(
    images: ImageResolver, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that never answers holds neither other namespaces' pulls nor the threads of the event loop."""
    answers = Event()

    def unpack(source: str, directory: Path, credentials_file: bytes = b"") -> Unpacked:
        if "tarpit" in source:
            answers.wait(60)
        return registry.unpack(source, directory, credentials_file)

    monkeypatch.setattr(sources, "unpack", unpack)
    hostile = {"metadata": {"namespace": "hostile"}}
    pulls = [asyncio.create_task(images.resolve(f"tarpit.example/{n}", "IfNotPresent", hostile)) for n in range(50)]
    other = {"metadata": {"namespace": "other"}}
    assert (await images.resolve("example.com/a", "IfNotPresent", other)).pulled
    await asyncio.to_thread(lambda: None)
    answers.set()
    assert all(image.pulled for image in await asyncio.gather(*pulls))


async def test_image_stored_meanwhile_is_not_pulled_again(
    images: ImageResolver, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, looks = images.store.find, list[Reference]()

    def late(reference: Reference) -> StoredImage | None:
        """Report the image as missing while another pull stores it."""
        looks.append(reference)
        found = find(reference)
        if len(looks) == 1:
            import_image(images.store, reference, "docker://example.com/a:latest")
        return found

    monkeypatch.setattr(images.store, "find", late)
    await images.resolve("example.com/a", "IfNotPresent", {})
    assert len(registry.asked) == 1


async def test_names_without_a_registry_are_of_docker_hub(images: ImageResolver, registry: Registry) -> None:
    await images.resolve("python:3", "IfNotPresent", {})
    await images.resolve("me/python:3", "IfNotPresent", {})
    assert registry.asked == ["docker://docker.io/library/python:3", "docker://docker.io/me/python:3"]


async def test_pull_policy_always_pulls_again(images: ImageResolver, registry: Registry) -> None:
    for _ in range(2):
        assert (await images.resolve("example.com/a", "Always", {})).pulled
    assert len(registry.asked) == 2


async def test_imported_image_is_not_pulled(images: ImageResolver, registry: Registry) -> None:
    import_image(images.store, parse("example.com/mine"), "./directory")
    assert not (await images.resolve("example.com/mine", "Always", {})).pulled
    assert registry.asked == ["./directory"]


@pytest.mark.parametrize(
    ("name", "policy", "reason", "message"),
    [
        ("Not A Name", "Always", "InvalidImageName", "is not an image name"),
        (
            "example.com/a",
            "Never",
            "ErrImageNeverPull",
            "is not present with pull policy of Never",
        ),
        ("example.com/missing", "Always", "ErrImagePull", "could not be pulled: skopeo: manifest unknown"),
    ],
)
async def test_missing_image_has_its_reason(
    images: ImageResolver, registry: Registry, name: str, policy: str, reason: str, message: str
) -> None:
    with pytest.raises(ImageFailure, match=message) as failure:
        await images.resolve(name, policy, {})
    assert failure.value.reason == reason


async def test_different_credentials_pull_separately(
    images: ImageResolver, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Barrier(2)

    def slowly(source: str, directory: Path, credentials_file: bytes = b"") -> Unpacked:
        both.wait(60)
        return registry.unpack(source, directory, credentials_file)

    monkeypatch.setattr(sources, "unpack", slowly)
    pods = (pulling_pod("login"), pulling_pod(), pulling_pod("login"))
    await asyncio.gather(*(images.resolve("example.com/a", "IfNotPresent", pod) for pod in pods))
    assert sorted(map(bool, registry.logins)) == [False, True]


async def test_failed_pull_names_missing_pull_secrets(images: ImageResolver, registry: Registry) -> None:
    mine = pulling_pod("gone")
    with pytest.raises(ImageFailure, match='manifest unknown; pull secret "gone" does not exist'):
        await images.resolve("example.com/missing", "IfNotPresent", mine)
    await images.resolve("example.com/public", "IfNotPresent", mine)
