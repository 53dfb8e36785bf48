"""A pod's pull secrets as a credentials file for skopeo.

Only names and passwords of a secret are passed on: such files can also name programs to run.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import orjson

from sandpool.api.resource import Object, SharedObject
from sandpool.kube.errors import NotFound

#: Reads a Secret by name and namespace. Raises ``NotFound``.
SecretReader = Callable[[str, str], Awaitable[SharedObject]]

# By type of the secret: its key, and the field of the document that has the registries.
_KINDS: Final = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson", "auths"),
    "kubernetes.io/dockercfg": (".dockercfg", None),
}
_DOCKER: Final = "docker.io"
_NAMES_OF_DOCKER: Final = (_DOCKER, "index.docker.io", "registry-1.docker.io")


class InvalidPullSecret(Exception):
    """The secret holds no registry credentials; the message says why."""


class Credentials(NamedTuple):
    """``file`` is empty if there are none. ``problems`` describes unusable secrets, for the message of a failed
    pull."""

    file: bytes = b""
    problems: str = ""


async def credentials(pod: SharedObject, host: str, secrets: SecretReader) -> Credentials:
    """Return the pod's credentials for one registry. Of two secrets for the same registry the first wins."""
    names = [each["name"] for each in (pod.get("spec") or {}).get("imagePullSecrets") or () if each.get("name")]
    found: dict[str, Object] = {}
    problems: list[str] = []
    for name in names:
        try:
            entries = _entries(await secrets(name, pod["metadata"]["namespace"]))
        except NotFound:
            problems.append(f'pull secret "{name}" does not exist')
        except InvalidPullSecret as error:
            problems.append(f'pull secret "{name}" {error}')
        else:
            found = {**entries, **found}
    fitting = {place: entry for place, entry in found.items() if _host(place) == host}
    if names and not fitting and not problems:
        problems.append(f"no pull secret of the pod is for {host}")
    return Credentials(orjson.dumps({"auths": fitting}) if fitting else b"", "; ".join(problems))


def _entries(secret: SharedObject) -> dict[str, Object]:
    key, within = _KINDS.get(secret.get("type") or "", ("", None))
    if not key:
        raise InvalidPullSecret(f"is not of type {' or '.join(_KINDS)}")
    try:
        document = orjson.loads(base64.b64decode((secret.get("data") or {}).get(key) or ""))
        registries = document[within] if within else document
        return dict(_login(place, entry) for place, entry in registries.items())
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidPullSecret(f"holds no credentials in {key}") from error


def _login(place: str, entry: dict[str, Any]) -> tuple[str, Object]:
    if entry.get("auth"):
        return place, {"auth": str(entry["auth"])}
    words = f"{entry['username']}:{entry['password']}"
    return place, {"auth": base64.b64encode(words.encode()).decode()}


def _host(place: str) -> str:
    """The host of a registry, which secrets write as a host, a host with a path, or a URL."""
    host = place.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return _DOCKER if host in _NAMES_OF_DOCKER else host
