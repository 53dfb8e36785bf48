"""Paths of the files of homes, as text: shared with the fast way of ``sandpool run``, so nothing is imported here."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: The register of a user's homes, in the data directory, and the description of a home in it.
REGISTER = "homes"
DESCRIPTION = "home.json"
#: The socket at which a home serves ``sandpool run``, beside its description.
RUN_SOCKET = "run.sock"
LOCAL = "local"  # the home with the default data directory of its user
SUDO = "sudo"  # the home with the default data directory of root, as the user who called sudo sees it
#: The homes that programs prefer to the one that was started last, the best one first.
PREFERRED = (LOCAL, SUDO)
#: The chosen context, in the configuration directory.
CONTEXT = "context.json"
#: Environment variable: show the traceback of every failure.
TRACEBACK = "SANDPOOL_TRACEBACK"


def data_directory(environ: Mapping[str, str], home: str) -> str:
    """The directory of Sandpool's data, for the user with this home directory."""
    return f"{_base(environ, 'XDG_DATA_HOME', f'{home}/.local/share')}/sandpool"


def config_directory(environ: Mapping[str, str], home: str) -> str:
    """The directory of Sandpool's configuration."""
    return f"{_base(environ, 'XDG_CONFIG_HOME', f'{home}/.config')}/sandpool"


def _base(environ: Mapping[str, str], variable: str, otherwise: str) -> str:
    configured = environ.get(variable, "")
    # The XDG specification says to ignore a relative path.
    return configured if configured.startswith("/") else otherwise
