"""Options in groups: ``--help`` shows the ones that matter first and the rest under headings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FIRST = "Options"


class GroupedOption(click.Option):
    """An option with the heading that it is shown under."""

    def __init__(self, *names: Any, group: str = FIRST, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups, in the order in which the groups first appear."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {FIRST: []}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                groups.setdefault(getattr(parameter, "group", FIRST), []).append(record)
        # Every command has --help, so the first group always has content; it is last where it is all.
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class SectionedCommand(click.Command):
    """A command whose help shows the options of ``sections``, by the names of their parameters, under headings after
    the others. For options that several commands share, each with headings of its own."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            each.name: record
            for each in self.get_params(ctx)
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)) is not None
        }
        below = {name for names in self.sections.values() for name in names}
        first = [name for name in records if name not in below]
        for title, names in {FIRST: first, **self.sections}.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names if name in records])


def option(*names: str, group: str = FIRST, **settings: Any) -> Callable[[F], F]:
    """``click.option`` with a heading for ``--help``."""
    return click.option(*names, cls=GroupedOption, group=group, **settings)
