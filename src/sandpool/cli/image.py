"""``sandpool image``: the images on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from sandpool.cli.serving import data_dir_option
from sandpool.node.images.builtin import PYTHON
from sandpool.node.images.images import import_image
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.node.images.sources import SourceFailure
from sandpool.node.images.store import ImageInUse, ImageStore


def _parsed(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[Reference, ...]:
    try:
        return tuple(map(parse, texts))
    except InvalidImageName as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def image() -> None:
    """Show, import and remove images on this machine."""


@image.command("ls")
@data_dir_option
def list_images(data_dir: Path) -> None:
    """Show what can be used without a registry."""
    rows = [("NAME", "ID", "SIZE", "FROM"), (PYTHON, "", "", "this machine's own programs")]
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
    try:
        stored = import_image(_store(data_dir), name, source)
    except SourceFailure as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}   {stored.size / 1e6:.1f} MB   {stored.id}")


@image.command("rm")
@click.argument("names", nargs=-1, required=True, callback=_parsed)
@data_dir_option
def remove(names: tuple[Reference, ...], data_dir: Path) -> None:
    """Remove images by name. One that a container runs on stays."""
    store = _store(data_dir)
    missing: list[str] = []
    for name in names:
        try:
            if store.remove(name):
                click.echo(f"{name} removed")
            else:
                missing.append(str(name))
        except ImageInUse as error:
            raise click.ClickException(str(error)) from None
    if missing:
        raise click.ClickException(f"there is no image {', '.join(missing)}; see: sandpool image ls")


def _store(data_dir: Path) -> ImageStore:
    return ImageStore(data_dir / "images")
