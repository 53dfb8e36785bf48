"""Builds an image from a recipe.

Each step that changes files makes a layer, named by a digest of the layer below it, the step and everything that the
step uses: a step that was done before is not done again. A command sees all layers so far as its root.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

import msgspec

from sandpool.engine.clock import Clock
from sandpool.node.build import packages
from sandpool.node.build.layer_files import Context, LayerWriter, directory_digest, take_writes
from sandpool.node.build.recipe import (
    MOUNTED,
    Argument,
    BuildFailure,
    Configure,
    Copy,
    Packages,
    Recipe,
    Run,
    Step,
    substitute,
)
from sandpool.node.build.sandbox import BuildSandbox, StepCommand
from sandpool.node.images.builtin import HOST, BuiltInImages
from sandpool.node.images.config import ImageConfig
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.node.images.resolver import import_image, on_built_in, pull_source
from sandpool.node.images.sources import SourceFailure
from sandpool.node.images.store import ROOTFS, ImageStore, StoredImage
from sandpool.node.images.toolchain import MissingPackage
from sandpool.node.pods.container_spec import DEFAULT_PATH
from sandpool.node.pods.environment import ConfigError
from sandpool.node.pods.identity import Identity, identity
from sandpool.node.pods.interfaces import Image
from sandpool.node.runtimes.runtime import Bind, DataFile, HostToolchain, ImageLayers, Mount

_SHORT: Final = ("python", "sandboxd")


class Progress(Protocol):
    """Is told how a build goes."""

    def step(self, number: int, total: int, text: str) -> None: ...
    def cached(self) -> None: ...
    def output(self, data: bytes) -> None: ...
    def done(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """``arguments`` are values of the recipe's ARGs, ``pip_settings`` those of pip on this machine, and ``host_env`` is
    its environment. ``cache`` keeps downloads."""

    context: Path
    cache: Path
    arguments: Mapping[str, str]
    pip_settings: Mapping[str, str]
    host_env: Mapping[str, str]
    use_cache: bool = True


@dataclass(slots=True)
class _State:
    """The image as far as it is built."""

    key: str
    config: ImageConfig
    layers: list[Path]  # new ones, the topmost first
    arguments: dict[str, str]
    contents: dict[Path, str] = field(default_factory=dict)  # digests of directories of the host that commands use

    async def content(self, directory: Path) -> str:
        if directory not in self.contents:
            self.contents[directory] = await asyncio.to_thread(directory_digest, directory)
        return self.contents[directory]


class Builder:
    def __init__(
        self, store: ImageStore, built_in: BuiltInImages, sandbox: BuildSandbox, progress: Progress, clock: Clock
    ) -> None:
        self.store = store
        self.clock = clock
        self.built_in = built_in
        self.sandbox = sandbox
        self.progress = progress

    async def build(self, reference: Reference, recipe: Recipe, options: BuildOptions) -> StoredImage:
        """Build an image and name it. Raises ``BuildFailure``; completed layers stay for the next attempt."""
        total = len(recipe.steps) + 1
        self.progress.step(1, total, f"FROM {recipe.base}")
        with self.store.building():
            base = await asyncio.to_thread(self._base, recipe.base)
            below = base.id if isinstance(base, Image) else base
            self.progress.done(0.0)
            state = _State(base.id, base.config if isinstance(base, StoredImage) else ImageConfig(), [], {})
            context = await asyncio.to_thread(Context, options.context)
            for number, step in enumerate(recipe.steps, 2):
                self.progress.step(number, total, step.text)
                began = self.clock.monotonic()
                await self._perform(step, state, base, context, options)
                self.progress.done(self.clock.monotonic() - began)
            image_id = f"sha256:{_digest(state.key, msgspec.json.encode(state.config))}"
            return await asyncio.to_thread(
                self.store.add_built,
                reference,
                image_id,
                state.config,
                f"built from {recipe.base}",
                state.layers,
                below,
            )

    def _base(self, name: str) -> Image | StoredImage:
        try:
            reference = parse(name)
            stored = self.store.find(reference)
            if stored is not None:
                return stored
            if name in _SHORT:  # a tag or a digest asks for the image of a registry
                reference = reference._replace(host=HOST)
            built_in = self.built_in.find(reference)
            if built_in is not None:
                return built_in
            return import_image(self.store, reference, pull_source(reference))
        except InvalidImageName as error:
            raise BuildFailure(f"FROM {error}") from error
        except (SourceFailure, MissingPackage) as error:
            hint = f'. "FROM {reference.path}" is the built-in image' if reference.path in _SHORT else ""
            raise BuildFailure(
                f"FROM {name}: it is not on this machine and could not be pulled: {error}{hint}"
            ) from error

    async def _perform(
        self, step: Step, state: _State, base: Image | StoredImage, context: Context, options: BuildOptions
    ) -> None:
        image = self._image(state, base)
        variables = {**state.arguments, **image.env}
        match step:
            case Configure():
                state.config = configured(state.config, step, variables, image.working_dir)
            case Argument():
                value = options.arguments.get(step.name, step.default)
                if value is not None:
                    state.arguments[step.name] = substitute(value, variables)
            case Packages():
                for each in await asyncio.to_thread(self._package_steps, step, image, options):
                    await self._perform(each, state, base, context, options)
            case Copy():
                await asyncio.to_thread(self._copy, step, state, image, context, variables, options)
            case Run():
                await self._run(step, state, image, options)

    def _package_steps(self, step: Packages, image: Image, options: BuildOptions) -> list[Step]:
        toolchain = isinstance(image.root, HostToolchain)
        if step.apt:
            return packages.apt_steps(step, on_built_in=toolchain, cache=options.cache)
        return packages.pip_steps(step, on_built_in=toolchain, env=image.env, settings=options.pip_settings)

    def _image(self, state: _State, base: Image | StoredImage) -> Image:
        """The image so far, as a container sees it."""
        config = state.config
        layers = (*state.layers, *(base.layers if isinstance(base, StoredImage) else ()))
        image = Image(
            id="",
            root=ImageLayers(layers),
            env=config.env,
            entrypoint=config.entrypoint,
            command=config.command,
            working_dir=config.working_dir,
            user=config.user,
        )
        if isinstance(base, Image):
            return on_built_in(base, image)
        if base.built_in:
            below = self.built_in.find(parse(base.built_in.partition("@")[0]))
            if below is None or below.id != base.built_in:
                raise BuildFailure(f"FROM: {base.id} was built on {base.built_in}, which this machine no longer has")
            return on_built_in(below, image)
        return image

    def _copy(
        self,
        step: Copy,
        state: _State,
        image: Image,
        context: Context,
        variables: Mapping[str, str],
        options: BuildOptions,
    ) -> None:
        sources = [path for source in step.sources for path in context.find(substitute(source, variables))]
        target, user = substitute(step.target, variables), _user(image.user)
        key = _digest(state.key, "copy", context.digest(sources), target, image.working_dir, user)
        if not self._cached(key, state, options):
            with self.store.incoming() as incoming:
                writer = LayerWriter(incoming / ROOTFS, image.root.layers, user.uid, user.gid)
                writer.copy(context, sources, target, image.working_dir)
                state.layers.insert(0, self.store.add_layer(key, incoming))
        state.key = key

    async def _run(self, step: Run, state: _State, image: Image, options: BuildOptions) -> None:
        user = _user(step.user or image.user)
        env = {"PATH": DEFAULT_PATH, **state.arguments, **image.env}
        _, pip_directories = packages.pip_files(options.pip_settings)
        directories = {**pip_directories, **step.directories}
        used = {
            **{name: content for name, content in step.files.items() if name not in packages.SETTINGS},
            **{name: await state.content(path) for name, path in directories.items() if name not in packages.SETTINGS},
        }
        key = _digest(state.key, "run", step.words, sorted(env.items()), image.working_dir, user, sorted(used.items()))
        if not self._cached(key, state, options):
            with self.store.incoming() as incoming:
                await self._command(step, image, user, env, incoming, options)
                state.layers.insert(0, await asyncio.to_thread(self.store.add_layer, key, incoming))
        state.key = key

    async def _command(
        self, step: Run, image: Image, user: Identity, env: Mapping[str, str], incoming: Path, options: BuildOptions
    ) -> None:
        toolchain = isinstance(image.root, HostToolchain)
        pip_files, pip_directories = packages.pip_files(options.pip_settings)
        files, directories = {**pip_files, **step.files}, {**pip_directories, **step.directories}
        mounts: list[Mount] = [DataFile(f"{MOUNTED}/{name}", content) for name, content in files.items()]
        mounts += [Bind(path.resolve(), f"{MOUNTED}/{name}", read_only=True) for name, path in directories.items()]
        scratch = incoming / "scratch"
        scratch.mkdir()
        home = ("/root" if user.uid == 0 else "/home/sandbox") if toolchain else "/root"
        code = await self.sandbox.run(
            StepCommand(
                words=step.words,
                root=image.root,
                env={"HOME": home, **packages.variables_of_commands(options.host_env), **env},
                cwd=image.working_dir or "/",
                uid=user.uid,
                gid=user.gid,
                mounts=tuple(mounts),
                scratch=scratch,
            ),
            self.progress.output,
        )
        if code != 0:
            advice = f"; {step.advice}" if step.advice else ""
            raise BuildFailure(f"{step.text}: exit code {code}{advice}")
        # In a toolchain everything but /usr belongs to the user of the image, whichever user ran the step.
        owner = _user(image.user) if toolchain else user
        await asyncio.to_thread(
            take_writes, scratch, incoming / ROOTFS, self.sandbox.host_user, owner, toolchain=toolchain
        )
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _cached(self, key: str, state: _State, options: BuildOptions) -> bool:
        layer = self.store.layer(key) if options.use_cache else None
        if layer is not None:
            state.layers.insert(0, layer)
            self.progress.cached()
        return layer is not None


def configured(config: ImageConfig, step: Configure, variables: Mapping[str, str], working_dir: str) -> ImageConfig:
    """Return the settings of an image after a step. A relative working directory is below ``working_dir``."""
    changed = replace(config, env={**config.env, **{name: substitute(v, variables) for name, v in step.env.items()}})
    if step.working_dir is not None:
        place = PurePosixPath(working_dir or "/", substitute(step.working_dir, variables))
        changed = replace(changed, working_dir=os.path.normpath(str(place)))
    if step.user is not None:
        changed = replace(changed, user=substitute(step.user, variables))
    if step.entrypoint is not None:
        changed = replace(changed, entrypoint=step.entrypoint)
    if step.command is not None:
        changed = replace(changed, command=step.command)
    if step.ports:
        changed = replace(changed, ports=(*changed.ports, *(substitute(port, variables) for port in step.ports)))
    if step.stop_signal is not None:
        changed = replace(changed, stop_signal=step.stop_signal)
    return changed


def _user(user: str) -> Identity:
    try:
        return identity({}, {}, user)
    except ConfigError as error:
        raise BuildFailure(f"USER {user}: give the number of the user instead of a name") from error


def _digest(*parts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
