"""What a pod's pull secrets say to registries, in the form that skopeo reads from a file.

Nothing of a secret is passed on but names and passwords: such files can also name programs to be run for them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import orjson

from sandpool.api.resource import Object
from sandpool.kube.errors import NotFound

#: Reads a Secret, by its name and namespace; raises ``NotFound``.
Secrets = Callable[[str, str], Awaitable[Object]]

# By the type of the secret: its key, and where in the document the registries are.
_KINDS: Final = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson", "auths"),
    "kubernetes.io/dockercfg": (".dockercfg", None),
}
_DOCKER: Final = "docker.io"
_NAMES_OF_DOCKER: Final = (_DOCKER, "index.docker.io", "registry-1.docker.io")


class Unusable(Exception):
    """A secret that is none for pulling images; the message says which."""


class Credentials(NamedTuple):
    """``file`` is empty if there are none. ``lacking`` tells what was named and cannot be used: of interest when an
    image could not be pulled."""

    file: bytes = b""
    lacking: str = ""


async def credentials(pod: Object, host: str, secrets: Secrets) -> Credentials:
    """Those of the pod for one registry. Of two secrets for the same place the first counts."""
    names = [each["name"] for each in (pod.get("spec") or {}).get("imagePullSecrets") or () if each.get("name")]
    found: dict[str, Object] = {}
    lacking: list[str] = []
    for name in names:
        try:
            entries = _entries(await secrets(name, pod["metadata"]["namespace"]))
        except NotFound:
            lacking.append(f'pull secret "{name}" does not exist')
        except Unusable as error:
            lacking.append(f'pull secret "{name}" {error}')
        else:
            found = {**entries, **found}
    fitting = {place: entry for place, entry in found.items() if _host(place) == host}
    if names and not fitting and not lacking:
        lacking.append(f"no pull secret of the pod is for {host}")
    return Credentials(orjson.dumps({"auths": fitting}) if fitting else b"", "; ".join(lacking))


def _entries(secret: Object) -> dict[str, Object]:
    key, within = _KINDS.get(secret.get("type") or "", ("", None))
    if not key:
        raise Unusable(f"is not of type {' or '.join(_KINDS)}")
    try:
        document = orjson.loads(base64.b64decode((secret.get("data") or {}).get(key) or ""))
        registries = document[within] if within else document
        return dict(_login(place, entry) for place, entry in registries.items())
    except (binascii.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"holds no credentials in {key}") from error


def _login(place: str, entry: dict[str, Any]) -> tuple[str, Object]:
    if entry.get("auth"):
        return place, {"auth": str(entry["auth"])}
    words = f"{entry['username']}:{entry['password']}"
    return place, {"auth": base64.b64encode(words.encode()).decode()}


def _host(place: str) -> str:
    """Places are written as a host, with a path, or as an address."""
    host = place.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return _DOCKER if host in _NAMES_OF_DOCKER else host
