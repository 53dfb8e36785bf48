"""``sandpool``: the command group. Each command is imported on first use."""

from __future__ import annotations

from importlib import import_module

import click

from sandpool import __version__

# Command -> its module and its line in ``sandpool --help``.
_COMMANDS = {
    "bench": ("sandpool.cli.bench", "Measure latency and cost of claims under load."),
    "controller": ("sandpool.cli.controller", "Run the controllers for a Kubernetes cluster."),
    "demo": ("sandpool.cli.demo", "Demonstrate everything on this machine, from start to clean-up."),
    "image": ("sandpool.cli.image", "List, import and remove images of this machine."),
    "install": ("sandpool.cli.install", "Install into a Kubernetes cluster."),
    "node": ("sandpool.cli.node", "Run this machine as a node of a Kubernetes cluster."),
    "router": ("sandpool.cli.router", "Route HTTP requests to the sandboxes of a Kubernetes cluster."),
    "server": ("sandpool.cli.server", "Run the embedded Kubernetes API alone."),
    "uninstall": ("sandpool.cli.uninstall", "Remove an installation from a Kubernetes cluster."),
    "token": ("sandpool.cli.token", "Issue a token for sandboxes behind the router."),
    "trace": ("sandpool.cli.trace", "Show every API call about one claim or sandbox, from an audit log."),
    "up": ("sandpool.cli.up", "Run everything on this machine: the embedded API, the controllers and sandboxes."),
    "why": ("sandpool.cli.why", "Explain why a claim is ready, or what it waits for."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[name]
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sandpool")
def main() -> None:
    """Agent sandboxes, warm and handed out exactly once."""


if __name__ == "__main__":
    main()
