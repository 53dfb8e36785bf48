"""ServiceAccount: who pods are; of the secrets it may mention, only their names are kept."""

from __future__ import annotations

from sandpool.api.resource import Object
from sandpool.server.kinds.copy_on_write import each, inside
from sandpool.server.kinds.strategy import KindStrategy


class ServiceAccountStrategy(KindStrategy):
    def prepare_create(self, obj: Object) -> Object:
        return inside(obj, "secrets", lambda secrets: each(secrets, _only_name))

    def prepare_update(self, new: Object, old: Object) -> Object:
        return self.prepare_create(new)


def _only_name(reference: Object) -> Object:
    return reference if reference.keys() <= {"name"} else {key: reference[key] for key in reference if key == "name"}
