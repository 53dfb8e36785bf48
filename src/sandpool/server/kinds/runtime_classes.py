"""RuntimeClass: a way of running containers, chosen by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, duplicate, immutable, invalid, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import inside
from sandpool.server.kinds.metadata import validate_labels
from sandpool.server.kinds.resource_requirements import default_amounts, validate_requirements
from sandpool.server.kinds.scheduling import validate_tolerations
from sandpool.server.kinds.strategy import KindStrategy

_IDENTITY: Final = ("key", "operator", "value", "effect")


class RuntimeClassStrategy(KindStrategy):
    allow_create_on_update = True
    allow_unconditional_update = False

    def default(self, obj: Object, old: Object | None = None) -> Object:
        return inside(obj, "overhead", lambda overhead: inside(overhead, "podFixed", default_amounts))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        found = list(_validate(new))
        if old is not None and new.get("handler") != old.get("handler"):
            found.append(immutable("handler", new.get("handler") or ""))
        return found


def _validate(runtime: Object) -> Iterator[Cause]:
    handler = runtime.get("handler")
    if not handler:
        yield required("handler")
    else:
        yield from (invalid("handler", handler, why) for why in names.label(handler))
    fixed = (runtime.get("overhead") or {}).get("podFixed")
    if fixed:
        yield from validate_requirements({"limits": fixed}, "overhead")
    scheduling = runtime.get("scheduling") or {}
    yield from validate_labels(scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
    tolerations = scheduling.get("tolerations") or []
    yield from validate_tolerations(tolerations, "scheduling.tolerations")
    seen: list[list[Any]] = []
    for index, toleration in enumerate(tolerations):
        identity = [toleration.get(field) or "" for field in _IDENTITY]
        if identity in seen:
            yield duplicate(f"scheduling.tolerations[{index}]", toleration)
        seen.append(identity)
