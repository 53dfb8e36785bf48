"""``sandpool image``: list, import and remove images of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from sandpool.cli.serving import data_dir_option, node_directory
from sandpool.node.images.builtin import PYTHON, SANDBOXD, is_built_in
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.node.images.resolver import import_image
from sandpool.node.images.sources import SourceFailure
from sandpool.node.images.store import ImageInUse, ImageStore
from sandpool.node.pods.context import PODS
from sandpool.node.runtimes.spec_codec import recorded_roots


def _parsed(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[Reference, ...]:
    try:
        return tuple(map(parse, texts))
    except InvalidImageName as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def image() -> None:
    """List, import and remove images of this machine."""


@image.command("ls")
@data_dir_option
def list_images(data_dir: Path) -> None:
    """List the images that need no registry."""
    rows = [("NAME", "ID", "SIZE", "FROM")]
    rows += [(name, "", "", "this machine's own programs") for name in (PYTHON, SANDBOXD)]
    for name, stored in _store(data_dir).names().items():
        rows.append((name, stored.id.removeprefix("sha256:")[:12], f"{stored.size / 1e6:.1f} MB", stored.source))
    widths = [max(len(row[column]) for row in rows) + 2 for column in range(3)]
    for row in rows:
        click.echo("".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) + row[3])


@image.command("import")
@click.argument("source")
@click.argument("name", callback=lambda context, parameter, text: _parsed(context, parameter, (text,))[0])
@data_dir_option
def import_(source: str, name: Reference, data_dir: Path) -> None:
    """Import SOURCE under NAME.

    SOURCE is a directory with a file system, a tar of one, an OCI layout, an archive made by podman or docker save,
    or a name in a registry: docker://registry/name:tag.
    """
    _check_not_built_in(name)
    try:
        stored = import_image(_store(data_dir), name, source)
    except SourceFailure as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}   {stored.size / 1e6:.1f} MB   {stored.id}")


@image.command("rm")
@click.argument("names", nargs=-1, required=True, callback=_parsed)
@data_dir_option
def remove(names: tuple[Reference, ...], data_dir: Path) -> None:
    """Remove images by name. An image that a container uses cannot be removed."""
    store = _store(data_dir)
    missing: list[str] = []
    for name in names:
        _check_not_built_in(name)
        try:
            if store.remove(name):
                click.echo(f"{name} removed")
            else:
                missing.append(str(name))
        except ImageInUse as error:
            raise click.ClickException(str(error)) from None
    if missing:
        raise click.ClickException(f"no such image: {', '.join(missing)}; `sandpool image ls` lists them")


def _check_not_built_in(name: Reference) -> None:
    if is_built_in(name):
        raise click.ClickException(f"{name} is a built-in image and cannot be replaced or removed")


def _store(data_dir: Path) -> ImageStore:
    """Return the image store of ``sandpool up``, or of ``sandpool node`` if ``data_dir`` is its directory."""
    directory = data_dir if (data_dir / PODS).is_dir() else node_directory(data_dir)
    return ImageStore(directory / "images", lambda: recorded_roots(directory / PODS))
