"""``sandpool trace``: show the timeline of one claim or sandbox from an audit log and a reconcile log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sandpool.api.kinds import SANDPOOL
from sandpool.api.printable import one_line
from sandpool.api.times import micro_timestamp
from sandpool.cli.output import DOCUMENTS, document_option, show_document
from sandpool.explain.calls import Call, NotAnAuditLog
from sandpool.explain.log_files import LogFiles
from sandpool.explain.request import who
from sandpool.explain.timeline import Lines, RelatedObjects, Step, objects_of_claim, objects_of_sandbox, timeline
from sandpool.home.connection import resolve
from sandpool.home.discovery import Home
from sandpool.kube.kubeconfig import KubeconfigError
from sandpool.service.service import DEFAULT_NAMESPACE

F = TypeVar("F", bound=Callable[..., Any])

_HEAD: Final = ("STEP", "DELTA MS", "TOOK MS", "METHOD", "RESOURCE", "RESULT", "WHO", "WHY")
# The same with the start, in the documents of -o json and yaml.
_KEYS: Final = ("step", "started", "deltaMs", "tookMs", "method", "resource", "result", "who", "why")
_NUMBERS: Final = frozenset({"STEP", "DELTA MS", "TOOK MS", "RESULT"})
# The kinds that controllers reconcile.
PLURALS: Final = {type.singular: type.plural for type in SANDPOOL}


def _options(command: F) -> F:
    for add in (
        click.option("--writes", is_flag=True, help="Show only writes, no reads and no reconciles."),
        click.option(
            "--controller-log",
            "controllers",
            type=click.Path(path_type=Path, dir_okay=False),
            multiple=True,
            help="Output of `sandpool controller --pass-log`, or its whole log; repeatable. Not needed with the audit "
            "log of `sandpool up`, which contains reconciles.",
        ),
        click.option(
            "--audit-log",
            "logs",
            type=click.Path(path_type=Path, dir_okay=False),
            multiple=True,
            envvar="SANDPOOL_AUDIT_LOG",
            help="Audit log of `sandpool up --audit-log FILE` or of kube-apiserver; repeatable. "
            "[env: SANDPOOL_AUDIT_LOG] [default: that of the running home]",
        ),
        document_option,
        click.option("--namespace", "-n", help="Namespace. [default: that of the context]"),
        click.argument("name"),
    ):
        command = add(command)
    return command


@click.group()
def trace() -> None:
    """Show every API call and every reconcile of one object: when, by which client, with which result and why."""


@trace.command()
@_options
def claim(**arguments: Any) -> None:
    """Show the timeline of a claim, its sandbox and its pod."""
    _show_timeline("claim", objects_of_claim, **arguments)


@trace.command()
@_options
def sandbox(**arguments: Any) -> None:
    """Show the timeline of a sandbox, its pod and its claim."""
    _show_timeline("sandbox", objects_of_sandbox, **arguments)


def _context() -> tuple[str, Home | None]:
    """Return the namespace and the home of the context. A log can be read without an API, so there may be none."""
    try:
        target = resolve()
        return target.connection().namespace, target.home
    except KubeconfigError:
        return DEFAULT_NAMESPACE, None


def _log_of(home: Home | None) -> Path:
    if home is None:
        raise click.UsageError("name an audit log with --audit-log: no home runs that could have one")
    if home.audit_log is None:
        raise click.UsageError(
            "the running home writes no audit log. Start it with one, for what happens from then on:\n"
            "sandpool down && sandpool up -d --audit-log audit.log"
        )
    return home.audit_log


def _show_timeline(
    kind: str,
    cast_of: Callable[[Lines, str, str], RelatedObjects],
    name: str,
    namespace: str | None,
    logs: Sequence[Path],
    controllers: Sequence[Path],
    writes: bool,
    output: str,
) -> None:
    if not (logs and namespace):
        of_context, home = _context()
        namespace, logs = namespace or of_context, logs or [_log_of(home)]
    logged = LogFiles(logs, controllers)
    lines = logged.lines
    try:
        related = cast_of(lines, namespace, name)
        steps = timeline(lines, related, writes_only=writes)
    except NotAnAuditLog as error:
        raise click.ClickException(f"{', '.join(map(str, logged.paths()))}: {error}") from None
    except OSError as error:
        raise click.ClickException(
            f"cannot read the log {error.filename}: {error.strerror}\n"
            "`sandpool up --audit-log FILE` writes an audit log; so does kube-apiserver with --audit-log-path and "
            "--audit-policy-file"
        ) from None
    if not steps:
        raise click.ClickException(
            f'no call in {", ".join(map(str, logged.paths()))} concerns {kind} "{name}" in namespace "{namespace}": '
            "it may be older than the log, or in another namespace (-n)"
        )
    if output in DOCUMENTS:
        show_document({"steps": [dict(zip(_KEYS, _values(step), strict=True)) for step in steps]}, output)
    else:
        for line in table(steps):
            click.echo(line)
    if not related.sandboxes:
        click.echo(
            "note: the log shows no sandbox of this claim: it got none, or the audit level is Metadata, which omits "
            "owner references (use level Request)",
            err=True,
        )
    if controllers and not any(True for _ in logged.reconciles()):
        click.echo(
            f"note: no reconciles are in {', '.join(map(str, controllers))}: run the controller with --pass-log",
            err=True,
        )


def table(steps: Sequence[Step]) -> Iterator[str]:
    rows = [_HEAD, *(tuple(map(one_line, _row(step))) for step in steps)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = (
            cell.rjust(width) if title in _NUMBERS else cell.ljust(width)
            for cell, width, title in zip(row, widths, _HEAD, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _row(step: Step) -> tuple[str, ...]:
    number, _, delta, took, *rest = _values(step)
    return (str(number), f"{delta:.1f}", f"{took:.1f}", *map(str, rest))


def _values(step: Step) -> tuple[Any, ...]:
    """Return the values of ``_KEYS``."""
    entry = step.entry
    times = (step.number, micro_timestamp(entry.started), step.delta_ms, entry.seconds * 1000)
    if isinstance(entry, Call):
        asked = entry.request
        resource = "/".join(filter(None, (asked.resource, asked.name, asked.subresource)))
        return (*times, asked.verb, resource, asked.code, who(asked), step.purpose)
    result = "error" if entry.problem else "ok"
    resource = f"{PLURALS[entry.kind]}/{entry.name}"
    return (*times, "reconcile", resource, result, f"controller {entry.controller}", step.purpose)
