"""``sandpool image build``: make an image with packages and files of one's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from sandpool.cli.home_report import with_sudo
from sandpool.cli.image_notes import note_users
from sandpool.cli.option_groups import SectionedCommand
from sandpool.cli.serving import home_data_dir_option, node_directory
from sandpool.engine.clock import SystemClock
from sandpool.node.build.builder import Builder, BuildOptions
from sandpool.node.build.dockerfile import parse_dockerfile
from sandpool.node.build.recipe import BuildFailure, Configure, Copy, NeedsRoot, Packages, Recipe, Run, Step
from sandpool.node.build.sandbox import BuildSandbox
from sandpool.node.images.builtin import HOST, BuiltInImages, is_built_in
from sandpool.node.images.pip_settings import host_settings
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.node.images.resolver import import_image
from sandpool.node.images.sources import SourceFailure
from sandpool.node.images.store import ImageStore, StoredImage
from sandpool.node.pods.context import PODS
from sandpool.node.runtimes.spec_codec import recorded_roots

_BUILDAH: Final = "buildah"
_WIDTH: Final = 100
_STDERR: Final = 2


class ConsoleProgress:
    """Prints steps as they begin and end, and the output of commands, indented."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._is_cached = False
        self._at_start = True
        self._tail = bytearray()  # of the output of the current step

    def step(self, number: int, total: int, text: str) -> None:
        self._is_cached = False
        self._tail.clear()
        if not self.quiet:
            line = text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."
            click.secho(f"[{number}/{total}] {line}", bold=True, err=True)

    def cached(self) -> None:
        self._is_cached = True

    def output(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-4096]
        if not self.quiet:
            for line in data.decode(errors="replace").splitlines(keepends=True):
                click.echo(f"    {line}" if self._at_start else line, nl=False, err=True)
                self._at_start = line.endswith("\n")

    def done(self, seconds: float) -> None:
        self._end_line()
        if self.quiet:
            return
        if self._is_cached:
            click.echo("    cached", err=True)
        elif seconds >= 0.1:
            click.echo(f"    {seconds:.1f} s", err=True)

    def failed(self) -> None:
        """Show the end of what the failed command wrote, if that has not been shown."""
        self._end_line()
        if self.quiet and self._tail:
            click.echo(self._tail.decode(errors="replace").rstrip(), err=True)

    def _end_line(self) -> None:
        if not self._at_start:
            click.echo(err=True)
        self._at_start = True


def _name(context: click.Context, parameter: click.Parameter, text: str) -> Reference:
    try:
        reference = parse(text)
    except InvalidImageName as error:
        raise click.BadParameter(str(error)) from None
    if is_built_in(reference):
        raise click.BadParameter(f"{reference} is a built-in image and cannot be replaced")
    return reference


def _pairs(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f'"{text}": use NAME=VALUE')
        found[name] = value
    return found


@click.command(
    "build",
    cls=SectionedCommand,
    sections={
        "Dockerfile": ("dockerfile", "context", "build_arg"),
        "How": ("no_cache", "builder", "quiet", "data_dir"),
    },
)
@click.argument("name", callback=_name)
@click.option("--from", "base", metavar="IMAGE", help="Image to build on. [default: python]")
@click.option("--pip", multiple=True, metavar="PACKAGE,...", help="Install Python packages.")
@click.option(
    "--requirements",
    "-r",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Install the Python packages of a requirements file.",
)
@click.option("--apt", multiple=True, metavar="PACKAGE,...", help="Install Debian packages.")
@click.option("--copy", "copies", multiple=True, metavar="SRC:DST", help="Copy a file or directory into the image.")
@click.option("--run", "commands", multiple=True, metavar="COMMAND", help="Run a shell command, after the above.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", callback=_pairs, help="Set a variable of the image.")
@click.option(
    "--file", "-f", "dockerfile", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Use a Dockerfile."
)
@click.option(
    "--context",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory that a Dockerfile copies from. [default: that of the Dockerfile]",
)
@click.option("--build-arg", multiple=True, metavar="NAME=VALUE", callback=_pairs, help="Set an ARG of a Dockerfile.")
@click.option("--no-cache", is_flag=True, help="Do every step again.")
@click.option(
    "--builder",
    type=click.Choice(["auto", _BUILDAH, "sandbox"]),
    default="auto",
    show_default=True,
    help="What runs a Dockerfile. auto: buildah if it is installed and the image comes from a registry.",
)
@click.option(
    "--quiet", "-q", is_flag=True, help="Print only the ID of the image, and the output of a step that fails."
)
@home_data_dir_option
def build(
    name: Reference,
    base: str | None,
    pip: tuple[str, ...],
    requirements: Path | None,
    apt: tuple[str, ...],
    copies: tuple[str, ...],
    commands: tuple[str, ...],
    env: dict[str, str],
    dockerfile: Path | None,
    context: Path | None,
    build_arg: dict[str, str],
    no_cache: bool,
    builder: str,
    quiet: bool,
    data_dir: Path,
) -> None:
    """Build the image NAME. A template can use it by that name at once.

    \b
    sandpool image build data --pip pandas,matplotlib --apt graphviz
    sandpool image build app --from python -r requirements.txt --copy ./src:/opt/app
    sandpool image build mine -f Dockerfile

    Commands run in a sandbox with access to the network. Steps that were done before are not done again.
    """
    store, directory = open_store(data_dir)
    own = (pip, requirements, apt, copies, commands, env, base)
    if dockerfile is not None and any(own):
        raise click.UsageError("--file cannot be combined with --from, --pip, -r, --apt, --copy, --run and --env")
    if dockerfile is None and not any(own[:-1]):
        raise click.UsageError("nothing to do: use --pip, --requirements, --apt, --copy, --run, --env or --file")
    try:
        if dockerfile is not None:
            recipe = parse_dockerfile(dockerfile.read_text(errors="replace"), build_arg)
            place = context or dockerfile.parent
        else:
            recipe = _recipe(base or "python", pip, requirements, apt, copies, commands, env)
            place = Path("/")
        if dockerfile is not None and _uses_buildah(builder, recipe, store):
            stored = _build_with_buildah(store, name, dockerfile, place, build_arg, use_cache=not no_cache, quiet=quiet)
        else:
            options = BuildOptions(
                place, directory / "build", build_arg, host_settings(), os.environ, use_cache=not no_cache
            )
            stored = asyncio.run(_build(store, directory, name, recipe, options, quiet=quiet))
    except NeedsRoot as error:
        raise click.ClickException(f"{error}: {with_sudo(*sys.argv[1:])}") from None
    except (BuildFailure, SourceFailure) as error:
        where = f"{dockerfile}: " if dockerfile is not None else ""
        raise click.ClickException(f"{where}{error}") from None
    except OSError as error:
        raise click.ClickException(f"{error.filename or directory}: {error.strerror or error}") from None
    click.echo(stored.id if quiet else f"{name}   {stored.size / 1e6:.1f} MB   {stored.id}")
    note_users(data_dir, name, stored.id)


def open_store(data_dir: Path) -> tuple[ImageStore, Path]:
    """Return the image store and the directory of the node of ``sandpool up``, or those of ``sandpool node`` if
    ``data_dir`` is its directory."""
    directory = data_dir if (data_dir / PODS).is_dir() else node_directory(data_dir)
    return ImageStore(directory / "images", lambda: recorded_roots(directory / PODS)), directory


async def _build(
    store: ImageStore, directory: Path, name: Reference, recipe: Recipe, options: BuildOptions, *, quiet: bool
) -> StoredImage:
    progress, clock = ConsoleProgress(quiet=quiet), SystemClock()
    sandbox = BuildSandbox(options.cache, clock, lambda text: click.echo(f"warning: {text}", err=True))
    built_in = BuiltInImages(directory / "images" / "built-in", store.used)
    try:
        return await Builder(store, built_in, sandbox, progress, clock).build(name, recipe, options)
    except BuildFailure:
        progress.failed()
        raise
    finally:
        await sandbox.close()


def _recipe(
    base: str,
    pip: tuple[str, ...],
    requirements: Path | None,
    apt: tuple[str, ...],
    copies: tuple[str, ...],
    commands: tuple[str, ...],
    env: dict[str, str],
) -> Recipe:
    """Steps in an order in which the ones that change rarely come first."""
    steps: list[Step] = []
    if env:
        steps.append(Configure("ENV " + " ".join(f"{name}={value}" for name, value in env.items()), env=env))
    if found := _listed(apt):
        steps.append(Packages(f"apt install {' '.join(found)}", apt=found))
    if requirements is not None:
        steps.append(Packages(f"pip install -r {requirements}", requirements=requirements.read_bytes()))
    if found := _listed(pip):
        steps.append(Packages(f"pip install {' '.join(found)}", pip=found))
    for text in copies:
        source, separator, target = text.rpartition(":")
        if not separator or not source or not target.startswith("/"):
            raise click.UsageError(f'--copy "{text}": use SRC:DST with an absolute DST')
        steps.append(Copy(f"COPY {source} {target}", (str(Path(source).absolute()),), target))
    steps += [Run(f"RUN {command}", ("/bin/sh", "-c", command)) for command in commands]
    return Recipe(base, tuple(steps))


def _listed(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Split at commas, except for those inside of brackets or between version constraints: ``a[x,y]>=1,<2``."""
    found: list[str] = []
    for text in texts:
        depth, word = 0, ""
        for number, character in enumerate(text):
            depth += (character == "[") - (character == "]")
            ends = character == "," and depth == 0 and text[number + 1 : number + 2] not in ("<", ">", "=", "!", "~")
            if ends:
                found.append(word)
            word = "" if ends else word + character
        found.append(word)
    return tuple(word.strip() for word in found if word.strip())


def _uses_buildah(builder: str, recipe: Recipe, store: ImageStore) -> bool:
    """Whether buildah builds this. It does not know the images of this machine."""
    if builder == "sandbox":
        return False
    reference = parse(recipe.base)
    short = reference._replace(host=HOST) if not reference.host else reference
    is_local = store.find(reference) is not None or is_built_in(reference) or is_built_in(short)
    if builder == _BUILDAH:
        if shutil.which(_BUILDAH) is None:
            raise BuildFailure("buildah is not installed; as root run: apt-get install buildah")
        if is_local:
            raise BuildFailure(f"buildah does not know {recipe.base}, an image of this machine: use --builder sandbox")
        return True
    return not is_local and shutil.which(_BUILDAH) is not None


def _build_with_buildah(
    store: ImageStore,
    name: Reference,
    file: Path,
    context: Path,
    arguments: dict[str, str],
    *,
    use_cache: bool,
    quiet: bool,
) -> StoredImage:
    with tempfile.TemporaryDirectory(prefix="sandpool-build-") as directory:
        archive, tag = f"{directory}/image.tar", f"localhost/sandpool-build:{os.getpid()}"
        words = [_BUILDAH, "build", "--layers" if use_cache else "--no-cache", "--tag", tag, "--file", str(file)]
        words += [word for pair in arguments.items() for word in ("--build-arg", "=".join(pair))]
        for command in ([*words, str(context)], [_BUILDAH, "push", tag, f"docker-archive:{archive}:{tag}"]):
            output = subprocess.PIPE if quiet else _STDERR
            done = subprocess.run(
                command, check=False, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
            if done.returncode != 0:
                if quiet:
                    click.echo(done.stdout.decode(errors="replace").rstrip(), err=True)
                raise BuildFailure(f"buildah {command[1]} failed")
        try:
            return import_image(store, name, archive)
        finally:
            subprocess.run([_BUILDAH, "rmi", tag], check=False, capture_output=True)
