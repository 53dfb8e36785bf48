"""Output of lists: ``-o table|wide|json|yaml|name``, with plain text for pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import click

from sandpool.api.printable import one_line, printable
from sandpool.api.resource import Object, SharedObject
from sandpool.cli.option_groups import option

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

FORMATS = ("table", "wide", "json", "yaml", "name")
DOCUMENTS = ("json", "yaml")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table. ``wide`` columns are shown with ``-o wide`` only."""

    title: str
    cell: Callable[[T], str]
    wide: bool = False


def output_option(command: F) -> F:
    return option(
        "--output",
        "-o",
        type=click.Choice(FORMATS),
        default="table",
        metavar="FORMAT",
        help="table, wide, json, yaml or name.",
    )(command)


def document_option(command: F) -> F:
    """Add ``-o`` to a command that shows one thing and not a list."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(["table", "json", "yaml"]),
        default="table",
        metavar="FORMAT",
        help="table, json or yaml.",
    )(command)


def show(
    rows: Sequence[T],
    columns: Sequence[Column[T]],
    *,
    output: str,
    name: Callable[[T], str],
    document: Callable[[T], SharedObject],
    nothing: str,
) -> None:
    """Print a list in a format. ``name`` is the line of ``-o name``, such as claim/NAME; ``nothing`` is the sentence
    for an empty table, printed to standard error so that scripts see an empty list."""
    if output == "name":
        for row in rows:
            click.echo(one_line(name(row)))
    elif output in DOCUMENTS:
        items = [_without_managed_fields(document(row)) for row in rows]
        show_document({"apiVersion": "v1", "kind": "List", "items": items}, output)
    elif not rows:
        click.echo(nothing, err=True)
    else:
        click.echo(table(*shown(rows, columns, wide=output == "wide")))


def shown(rows: Iterable[T], columns: Iterable[Column[T]], *, wide: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of a table, as ``table`` takes them."""
    chosen = [column for column in columns if wide or not column.wide]
    return [column.title for column in chosen], [[column.cell(row) for column in chosen] for row in rows]


def _without_managed_fields(document: SharedObject) -> SharedObject:
    """As kubectl shows objects: the record of who wrote which field is longer than the object."""
    if "managedFields" not in document.get("metadata", {}):
        return document
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {**document, "metadata": metadata}


def show_document(document: Object, output: str) -> None:
    """Print one document as JSON or YAML."""
    if output == "json":
        import json

        text = json.dumps(document, indent=2, ensure_ascii=False)
        click.echo(text if printable(text) == text else json.dumps(document, indent=2))
    else:
        import yaml

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        if printable(text) != text:
            text = yaml.safe_dump(document, sort_keys=False)
        click.echo(text, nl=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table. The head is bold on a terminal; click removes the style in pipes."""
    lines = [list(head), *([printable(cell, keep="") for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    text = ["   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([click.style(text[0], bold=True), *text[1:]])


def age(created: str, now: datetime | None = None) -> str:
    """The time since a timestamp of the API, as kubectl shows it."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return "<unknown>"
    seconds = int(((now or datetime.now(UTC)) - moment).total_seconds())
    return duration(max(0, seconds))


def duration(seconds: int) -> str:
    """A duration in its one or two largest units."""
    if seconds < 120:
        return f"{seconds}s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, rest = divmod(hours, 24)
    return f"{days}d{rest}h" if days < 8 and rest else f"{days}d"


def size(count: float) -> str:
    """A number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit has no limit")
