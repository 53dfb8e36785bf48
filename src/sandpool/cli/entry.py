"""The program ``sandpool``: the fast way of ``sandpool run`` if it applies, else the command line in ``cli.main``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program, and exit."""
    if sys.argv[1:2] == ["run"]:
        from sandpool.cli import run_client

        try:
            code = run_client.attempt(sys.argv[2:])
        except (OSError, run_client.ConnectionLost) as error:
            _fail(error)
        if code is not None:
            sys.exit(code)
    from sandpool.cli.main import main as command_line

    command_line()


def _fail(error: Exception) -> None:
    """End as the command line ends for this error. Its modules are imported now: the fast way is over."""
    from sandpool.cli.main import fail
    from sandpool.cli.run_client import ConnectionLost

    if isinstance(error, ConnectionLost):
        from sandpool.kube.pod_client import CONNECTION_LOST
        from sandpool.service.errors import CommandFailed

        error = CommandFailed(CONNECTION_LOST)
    fail(error)


if __name__ == "__main__":
    main()
