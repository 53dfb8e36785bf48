"""``sandpool template``: what the sandboxes of a pool are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sandpool.api.printable import one_line
from sandpool.cli.execution import parse_environment, parse_sleep_time
from sandpool.cli.flags import BYTES, CPUS
from sandpool.cli.option_groups import GroupedCommand, option
from sandpool.cli.output import Column, age, output_option, show, show_document
from sandpool.cli.sessions import Target, target_options

if TYPE_CHECKING:
    from sandpool.service.service import Service
    from sandpool.service.templates import Template


_SLEEP: Final = "Sleep"


@click.group()
def template() -> None:
    """Create, show and list templates."""


@template.command(cls=GroupedCommand)
@option("--all-namespaces", "-A", is_flag=True, help="Show all namespaces.")
@output_option
@target_options
def ls(all_namespaces: bool, output: str, target: Target) -> None:
    """List templates."""

    async def work(service: Service) -> tuple[Template, ...]:
        return await service.templates.list(all_namespaces=all_namespaces)

    columns: list[Column[Template]] = [
        Column("NAME", lambda template: template.name),
        Column("IMAGE", lambda template: template.image),
        Column("CPU", lambda template: template.cpu or "unlimited"),
        Column("MEMORY", lambda template: template.memory or "unlimited"),
        Column("AGE", lambda template: age(template.created)),
        Column("RUNTIME", lambda template: template.runtime or "default", wide=True),
    ]
    if all_namespaces:
        columns.insert(0, Column("NAMESPACE", lambda template: template.namespace))
    show(
        target.run(work),
        columns,
        output=output,
        name=lambda template: f"template/{template.name}",
        document=lambda template: template.object,
        nothing="no templates; make one with: sandpool template create NAME --image IMAGE",
    )


@template.command(name="show", cls=GroupedCommand)
@click.argument("name")
@option("--output", "-o", type=click.Choice(("yaml", "json")), default="yaml", show_default=True, help="Output format.")
@target_options
def show_template(name: str, output: str, target: Target) -> None:
    """Show a template as YAML that can be edited and created again."""
    from sandpool.api.labels import is_reserved_label

    async def work(service: Service) -> Template:
        return await service.templates.get(name)

    document = dict(target.run(work).object)
    metadata = document["metadata"]
    kept = {each: metadata[each] for each in ("name", "namespace", "annotations") if each in metadata}
    if own_labels := {key: value for key, value in metadata.get("labels", {}).items() if not is_reserved_label(key)}:
        kept["labels"] = own_labels
    document["metadata"] = kept
    document.pop("status", None)
    show_document(document, output)


@template.command(cls=GroupedCommand, context_settings={"allow_interspersed_args": True})
@click.argument("name", required=False)
@click.argument("command", nargs=-1)
@option("--image", help="Image of the sandboxes, such as sandpool.local/python.")
@option("--cpu", type=CPUS, help="Limit of CPUs, such as 2 or 500m.")
@option("--memory", type=BYTES, help="Limit of memory, such as 512Mi or 2Gi.")
@option("--disk", type=BYTES, help="Size of the writable root, such as 4Gi. [default: the node's]")
@option("--env", "-e", multiple=True, metavar="NAME=VALUE", help="Set a variable; NAME alone passes yours on.")
@option("--port", type=click.IntRange(1, 65535), help="The sandbox is ready when this port answers.")
@option("--runtime", help="Runtime class, such as gvisor. [default: the node's]")
@option(
    "--freeze",
    group=_SLEEP,
    is_flag=True,
    help="Freeze warm sandboxes until they are claimed, so that they cost no CPU.",
)
@option(
    "--freeze-after",
    group=_SLEEP,
    metavar="TIME",
    callback=parse_sleep_time,
    help="Freeze a sandbox that is not used for this long, such as 5m; the next request thaws it.",
)
@option(
    "--suspend-after",
    group=_SLEEP,
    metavar="TIME",
    callback=parse_sleep_time,
    help="Suspend a sandbox that is not used for this long, such as 1h; the next request resumes it.",
)
@option(
    "--late-binding",
    is_flag=True,
    help="Claims may set variables; these are handed to a warm sandbox, whose main process does not need them.",
)
@option(
    "--file", "-f", type=click.Path(path_type=Path), help="Read the template from a YAML file; - is standard input."
)
@target_options
def create(
    name: str | None,
    command: tuple[str, ...],
    image: str | None,
    env: tuple[str, ...],
    file: Path | None,
    target: Target,
    **options: Any,
) -> None:
    """Create a template from an image, or from a file.

    COMMAND is the main process of the sandbox. [default: that of the image]

    \b
    sandpool template create worker --image sandpool.local/python --memory 1Gi
    sandpool template create sleeper --image my/image -- sleep infinity
    sandpool template create -f template.yaml
    """
    from sandpool.api.views import TemplateView
    from sandpool.service.templates import NewTemplate

    if (image is None) == (file is None):
        raise click.UsageError("give an --image, or a file with -f")
    if file is not None:
        document = _read(file, name)
    else:
        if name is None:
            raise click.UsageError("give the template a name: sandpool template create NAME --image IMAGE")
        document = NewTemplate(image=image or "", command=command, env=parse_environment(env), **options).document(name)

    async def work(service: Service) -> Template:
        made = await service.templates.create(document)
        for volume in TemplateView.from_object(document).unmounted_volumes:
            click.echo(f'warning: volume "{one_line(volume)}" is mounted in no container', err=True)
        return made

    made = target.run(work, start_home=True)
    click.echo(f"created template {made.name}; make a pool of it with: sandpool pool create {made.name}")


@template.command(cls=GroupedCommand)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@option("--force", is_flag=True, help="Remove them although pools use them.")
@target_options
def rm(names: tuple[str, ...], force: bool, target: Target) -> None:
    """Remove templates. Sandboxes that exist stay."""

    async def work(service: Service) -> None:
        for name in names:
            await service.templates.delete(name, force=force)
            click.echo(f"removed template {name}")

    target.run(work)


def _read(file: Path, name: str | None) -> dict[str, Any]:
    """The template in a file, under another name if one is given."""
    import yaml

    try:
        text = sys.stdin.read() if file == Path("-") else file.read_text()
        documents = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} is not YAML: {error}") from None
    found = [each for each in documents if each.get("kind") == "SandboxTemplate"]
    if len(found) != 1:
        raise click.ClickException(f"{file} has {len(found)} documents of kind SandboxTemplate; it has to have one")
    document: dict[str, Any] = found[0]
    metadata = document.setdefault("metadata", {})
    if name is not None:
        metadata["name"] = name
    if not metadata.get("name"):
        raise click.UsageError("the template has no name: give one on the command line")
    return document
