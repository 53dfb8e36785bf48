"""The context that ``sandpool context use`` chose, in a file of Sandpool's own; ``~/.kube/config`` is never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandpool.home import users
from sandpool.home.locations import CONTEXT
from sandpool.home.owned_directory import open_directory, read_owned
from sandpool.kube.kubeconfig import KubeconfigError


@dataclass(frozen=True, slots=True)
class Context:
    """A context of a kubeconfig, or without one a local home, by name."""

    name: str
    kubeconfig: Path | None = None


def chosen(environ: Mapping[str, str] = os.environ) -> Context | None:
    """Return the chosen context, None if none was chosen. Raises ``KubeconfigError`` if the file is damaged."""
    path = _path(environ)
    try:
        document = json.loads(read_owned(path, os.geteuid()))
        file = document.get("kubeconfig")
        return Context(document["context"], None if file is None else Path(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeconfigError(f"cannot read the chosen context in {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise KubeconfigError(f"{path} is damaged: choose a context again with `sandpool context use`") from None


def choose(context: Context | None, environ: Mapping[str, str] = os.environ) -> None:
    """Store the choice; None goes back to the default order. Raises ``OSError``."""
    path = _path(environ)
    if context is None:
        path.unlink(missing_ok=True)
        return
    document = {"context": context.name, "kubeconfig": None if context.kubeconfig is None else str(context.kubeconfig)}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_directory(path.parent, uid=path.parent.stat().st_uid, gid=os.getegid()) as directory:
        directory.write(CONTEXT, json.dumps(document).encode() + b"\n")


def _path(environ: Mapping[str, str]) -> Path:
    return users.config_dir(environ) / CONTEXT
