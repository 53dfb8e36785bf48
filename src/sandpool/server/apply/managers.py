"""Names of field managers: validation, and the default from the User-Agent."""

from __future__ import annotations

from typing import Any, Final

from sandpool.api.causes import Cause, invalid, required, too_long
from sandpool.api.resource import ResourceType
from sandpool.kube import errors

MAX_LENGTH: Final = 128  # bytes
_MAX_SUBRESOURCE_LENGTH: Final = 256


def validate_manager(name: str, *, applying: bool = False, options: str = "PatchOptions") -> None:
    """Validate the ``fieldManager`` of a request. An apply requires one; other writes default to the User-Agent.

    Raises Invalid for ``options``, the kind of the request's options.
    """
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
    """Validate the manager names in managedFields. Tracking has already ensured that the entries are well formed."""
    causes: list[Cause] = []
    for position, entry in enumerate(entries or ()):
        causes += manager_causes(entry.get("manager", ""), f"{path}[{position}].manager")
        if len(entry.get("subresource", "").encode()) > _MAX_SUBRESOURCE_LENGTH:
            causes.append(too_long(f"{path}[{position}].subresource", _MAX_SUBRESOURCE_LENGTH))
    return causes


def manager_from_user_agent(user_agent: str) -> str:
    """The User-Agent up to its first slash, cut at the first unprintable character and to the maximum length."""
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
