"""``sandpool image``: build, list, import, show and remove images of this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from sandpool.api.printable import one_line
from sandpool.api.resource import Object
from sandpool.cli.image_build import build, open_store
from sandpool.cli.image_notes import note_users
from sandpool.cli.output import Column, output_option
from sandpool.cli.output import show as show_list
from sandpool.cli.progress import steps
from sandpool.cli.serving import home_data_dir_option
from sandpool.node.images.builtin import PYTHON, SANDBOXD, is_built_in
from sandpool.node.images.reference import InvalidImageName, Reference, parse
from sandpool.node.images.resolver import import_image
from sandpool.node.images.sources import SourceFailure
from sandpool.node.images.store import ImageInUse, ImageStore


def _parsed(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[Reference, ...]:
    try:
        return tuple(map(parse, texts))
    except InvalidImageName as error:
        raise click.BadParameter(str(error)) from None


@click.group()
def image() -> None:
    """Build, list, import, show and remove images of this machine."""


image.add_command(build)


class _Row(NamedTuple):
    """A line of ``ls``: a name and its image. A built-in image has an ID and a size only once it is used."""

    name: str
    source: str
    id: str = ""
    size: int | None = None

    def document(self) -> Object:
        return {"name": self.name, "id": self.id, "size": self.size, "from": self.source}


@image.command("ls")
@home_data_dir_option
@output_option
def list_images(data_dir: Path, output: str) -> None:
    """List the images that need no registry."""
    rows = [_Row(name, "this machine's own programs") for name in (PYTHON, SANDBOXD)]
    rows += [
        _Row(str(name), stored.source, stored.id, stored.size) for name, stored in _store(data_dir).names().items()
    ]
    columns: list[Column[_Row]] = [
        Column("NAME", lambda row: row.name),
        Column("ID", lambda row: row.id.removeprefix("sha256:")[: None if output == "wide" else 12]),
        Column("SIZE", lambda row: "" if row.size is None else _megabytes(row.size)),
        Column("FROM", lambda row: one_line(row.source)),
    ]
    # The name alone, as the other commands of images take it.
    show_list(rows, columns, output=output, name=lambda row: row.name, document=_Row.document, nothing="no images")


@image.command("import")
@click.argument("source")
@click.argument("name", callback=lambda context, parameter, text: _parsed(context, parameter, (text,))[0])
@home_data_dir_option
def import_(source: str, name: Reference, data_dir: Path) -> None:
    """Import SOURCE under NAME.

    SOURCE is a directory with a file system, a tar of one, an OCI layout, an archive made by podman or docker save,
    or a name in a registry: docker://registry/name:tag.
    """
    _check_not_built_in(name)
    try:
        with steps(in_terminal_only=True) as progress:
            progress.step(f"importing {source} as {name}")
            stored = import_image(_store(data_dir), name, source)
    except SourceFailure as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name}   {_megabytes(stored.size)}   {stored.id}")
    note_users(data_dir, name, stored.id)


@image.command("show")
@click.argument("name", callback=lambda context, parameter, text: _parsed(context, parameter, (text,))[0])
@home_data_dir_option
def show(name: Reference, data_dir: Path) -> None:
    """Show the settings and layers of an image, as JSON."""
    _check_not_built_in(name, "has no settings to show: it is made of this machine's own programs")
    stored = _store(data_dir).find(name)
    if stored is None:
        raise click.ClickException(f"no such image: {name}; `sandpool image ls` lists them")
    about = {
        "name": str(name),
        "id": stored.id,
        "size": stored.size,
        "from": stored.source,
        "builtIn": stored.built_in or None,
        "config": asdict(stored.config),
        "layers": [str(path) for path in stored.layers],
    }
    click.echo(json.dumps(about, indent=2))


@image.command("rm")
@click.argument("names", nargs=-1, required=True, callback=_parsed)
@home_data_dir_option
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


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _check_not_built_in(name: Reference, why: str = "cannot be replaced or removed") -> None:
    if is_built_in(name):
        raise click.ClickException(f"{name} is a built-in image and {why}")


def _store(data_dir: Path) -> ImageStore:
    return open_store(data_dir)[0]
