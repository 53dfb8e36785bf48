"""The blueprints of the templates there are, each made once per change of its template and shared by everybody."""

from __future__ import annotations

from sandpool.controllers.blueprint import Blueprint
from sandpool.controllers.caches import Caches
from sandpool.engine.cache.store import Key


class Blueprints:
    def __init__(self, caches: Caches) -> None:
        self.caches = caches
        # With the UID and generation of the template each was made of; its status and labels do not matter.
        self._made: dict[Key, tuple[str, int, Blueprint]] = {}

    def of(self, namespace: str, template: str) -> Blueprint | None:
        """The blueprint of a template as it is now; None if there is no such template."""
        key = Key(namespace, template)
        view = self.caches.templates.get(key)
        if view is None:
            self._made.pop(key, None)
            return None
        made = self._made.get(key)
        if made is not None and made[:2] == (view.uid, view.generation):
            return made[2]
        blueprint = Blueprint.of(view)
        self._made[key] = (view.uid, view.generation, blueprint)
        return blueprint
