"""The names of field managers: which ones are allowed, and what a client that gives none is called."""

from __future__ import annotations

from typing import Any, Final

from sandpool.api.causes import Cause, invalid, required, too_long
from sandpool.api.resource import ResourceType
from sandpool.kube import errors

MAX_LENGTH: Final = 128  # bytes
_MAX_SUBRESOURCE_LENGTH: Final = 256


def validate_manager(name: str, *, applying: bool = False, options: str = "PatchOptions") -> None:
    """Check the ``fieldManager`` of a request. An apply has to give one, other writes may leave it to the User-Agent.
    Raises Invalid about ``options``, the kind of options the request takes."""
    causes = manager_causes(name)
    if applying and not name:
        causes.append(required("fieldManager", "is required for apply patch"))
    if causes:
        raise errors.invalid(ResourceType("meta.k8s.io", "v1", options, ""), "", causes)


def manager_causes(name: str, path: str = "fieldManager") -> list[Cause]:
    if len(name) <= MAX_LENGTH and name.isascii() and name.isprintable():
        return []
    causes = [too_long(path, MAX_LENGTH)] if len(name.encode()) > MAX_LENGTH else []
    position = 0
    for character in name:
        if not character.isprintable():
            causes.append(invalid(path, name, f"invalid character U+{ord(character):04X} (at position {position})"))
        position += len(character.encode())
    return causes


def managed_fields_causes(entries: Any, path: str = "metadata.managedFields") -> list[Cause]:
    """What validation of an object has to say about its managedFields. They have been tracked, so they are well
    formed; but a client may have set names in them."""
    causes: list[Cause] = []
    for position, entry in enumerate(entries or ()):
        causes += manager_causes(entry.get("manager", ""), f"{path}[{position}].manager")
        if len(entry.get("subresource", "").encode()) > _MAX_SUBRESOURCE_LENGTH:
            causes.append(too_long(f"{path}[{position}].subresource", _MAX_SUBRESOURCE_LENGTH))
    return causes


def manager_from_user_agent(user_agent: str) -> str:
    """What comes before the first slash, as far as it is printable and fits."""
    product = user_agent.partition("/")[0]
    if len(product) <= MAX_LENGTH and product.isascii() and product.isprintable():
        return product
    name = ""
    for character in product:
        if not character.isprintable():
            continue
        if len((name + character).encode()) > MAX_LENGTH:
            break
        name += character
    return name
