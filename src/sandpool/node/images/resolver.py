"""Resolves the image of a container: built in, stored on this machine, or pulled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from sandpool.api.resource import SharedObject
from sandpool.node.images import sources
from sandpool.node.images.builtin import BuiltInImages
from sandpool.node.images.credentials import Credentials, SecretReader, credentials
from sandpool.node.images.injected_runtime import InjectedRuntime, RuntimeUnavailable
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.node.images.store import ImageStore, StoredImage
from sandpool.node.images.toolchain import MissingPackage
from sandpool.node.pods.interfaces import Image, ImageFailure
from sandpool.node.runtimes.runtime import HostToolchain, ImageLayers

_log = logging.getLogger(__name__)

#: Pulls at the same time, and those that one namespace may cause. A registry may take as long as it likes to answer.
PULLS: Final = 8
PULLS_PER_NAMESPACE: Final = 2
_ALWAYS: Final = "Always"
_NEVER: Final = "Never"
_DEFAULT_HOST: Final = "docker.io"
# An image that says to serve this port has a server of the runtime API.
_SERVED: Final = frozenset({"8888", "8888/tcp"})


class ImageResolver:
    """Concurrent requests for the same image with the same credentials share one pull. ``used`` returns the root
    directories of existing containers, which must not be removed."""

    def __init__(self, directory: Path, used: Callable[[], Collection[Path]], secrets: SecretReader) -> None:
        self.secrets = secrets
        self.store = ImageStore(directory, used)
        self.built_in = BuiltInImages(directory / "built-in", used)
        self.injected = InjectedRuntime(directory / "runtime")
        # By image, credentials, and whether to pull a stored image again.
        self._pulls: dict[tuple[Reference, bytes, bool], asyncio.Task[StoredImage]] = {}
        # Threads of its own: those of the event loop must not wait for registries.
        self._pullers = ThreadPoolExecutor(PULLS, "pull images")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by namespace

    async def resolve(self, name: str, pull_policy: str, pod: SharedObject) -> Image:
        try:
            reference = parse(name)
        except InvalidImageName as error:
            raise ImageFailure("InvalidImageName", str(error)) from error
        try:
            if (image := self.built_in.cached(reference)) is not None:
                return image
            if (image := await asyncio.to_thread(self.built_in.find, reference)) is not None:
                return image
        except MissingPackage as error:
            raise ImageFailure("ErrImagePull", str(error)) from error
        stored = await asyncio.to_thread(self.store.find, reference)
        # An image that was imported under this name is used even with the pull policy Always: no registry has a newer
        # one.
        if stored is not None and (pull_policy != _ALWAYS or not stored.source.startswith("docker://")):
            return await self._image(stored, pulled=False)
        if pull_policy == _NEVER:
            raise ImageFailure("ErrImageNeverPull", f'image "{name}" is not present with pull policy of Never')
        mine = await credentials(pod, reference.host or _DEFAULT_HOST, self.secrets)
        return await self._image(await self._fetch(pod, reference, mine, pull_policy == _ALWAYS), pulled=True)

    async def _image(self, stored: StoredImage, *, pulled: bool) -> Image:
        config = stored.config
        image = Image(
            id=stored.id,
            root=ImageLayers(stored.layers),
            env=config.env,
            entrypoint=config.entrypoint,
            command=config.command,
            working_dir=config.working_dir,
            user=config.user,
            stop_signal=config.stop_signal,
            pulled=pulled,
        )
        if not _SERVED & set(config.ports) and (not stored.built_in or image.entrypoint or image.command):
            # It does not bring the server, or its own program takes the place of the built-in one.
            image = replace(image, runtime=await self._runtime())
        if not stored.built_in:
            return image
        try:
            below = await asyncio.to_thread(self.built_in.find, parse(stored.built_in.partition("@")[0]))
        except MissingPackage as error:
            raise ImageFailure("ErrImagePull", str(error)) from error
        if below is None or below.id != stored.built_in:
            why = f"it was built on {stored.built_in}, and this machine has {below.id if below else 'no such image'}"
            raise ImageFailure("ErrImagePull", f"{why}: build it again")
        return on_built_in(below, image)

    async def _runtime(self) -> Path | None:
        try:
            return await asyncio.to_thread(self.injected.find)
        except RuntimeUnavailable as error:
            _log.warning("%s", error)
            return None

    async def _fetch(self, pod: SharedObject, reference: Reference, mine: Credentials, anew: bool) -> StoredImage:
        key = reference, mine.file, anew
        task = self._pulls.get(key)
        if task is None:
            namespace = pod.get("metadata", {}).get("namespace", "")
            task = asyncio.create_task(self._pull_in_turn(namespace, *key), name=f"pull {reference}")
            self._pulls[key] = task
            task.add_done_callback(lambda _: self._pulls.pop(key, None))
        try:
            return await asyncio.shield(task)
        except sources.SourceFailure as error:
            message = f'image "{reference}" is not on this machine and could not be pulled: {error}'
            if mine.problems:
                message += f"; {mine.problems}"
            raise ImageFailure("ErrImagePull", message) from error

    async def _pull_in_turn(
        self, namespace: str, reference: Reference, credentials_file: bytes, anew: bool
    ) -> StoredImage:
        turns = self._turns.setdefault(namespace, asyncio.Semaphore(PULLS_PER_NAMESPACE))
        async with turns:
            work = partial(self._pull, reference, credentials_file, anew)
            return await asyncio.get_running_loop().run_in_executor(self._pullers, work)

    def _pull(self, reference: Reference, credentials_file: bytes, anew: bool) -> StoredImage:
        # Another pull may have stored it meanwhile.
        if not anew and (stored := self.store.find(reference)) is not None:
            return stored
        return import_image(self.store, reference, pull_source(reference), credentials_file)


def pull_source(reference: Reference) -> str:
    """Return where an image is pulled from, as a source of ``import_image``."""
    host, path = reference.host or _DEFAULT_HOST, reference.path
    if host == _DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return f"docker://{Reference(host, path, reference.tag, reference.digest)}"


def import_image(store: ImageStore, reference: Reference, source: str, credentials_file: bytes = b"") -> StoredImage:
    """Import or pull an image into the store. ``credentials_file`` is as for ``sources.unpack``. Raises
    ``SourceFailure`` and then leaves the store unchanged."""
    with store.incoming() as incoming:
        unpacked = sources.unpack(source, incoming, credentials_file)
        return store.add(reference, incoming, unpacked.id, unpacked.config, source)


def on_built_in(below: Image, image: Image) -> Image:
    """Return an image whose layers are above a built-in one. Settings that it does not have are those of the latter."""
    assert isinstance(below.root, HostToolchain)
    has_own_program = bool(image.entrypoint or image.command)
    return replace(
        image,
        root=HostToolchain(below.root.prefixes, image.root.layers),
        env={**below.env, **image.env},
        entrypoint=image.entrypoint if has_own_program else below.entrypoint,
        command=image.command if has_own_program else below.command,
        working_dir=image.working_dir or below.working_dir,
        user=image.user or below.user,
        files=below.files,
    )
