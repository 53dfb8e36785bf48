"""Custom resources: kinds that a CustomResourceDefinition defines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest, MethodNotAllowed
from sandpool.server.kinds.strategy import METADATA_FIELDS, ClusterReader, KindStrategy


class CustomResourceStrategy(KindStrategy):
    """The strategy of one version of a custom resource. Its schema covers defaults and validation."""

    spec_generation = True
    allow_unconditional_update = False

    def __init__(
        self, selectable_paths: Iterable[str] = (), *, namespaced: bool = True, terminating: bool = False
    ) -> None:
        self._paths = {path.removeprefix("."): path.removeprefix(".").split(".") for path in selectable_paths}
        self.field_labels = frozenset(self._paths)
        self.metadata_labels = METADATA_FIELDS if namespaced else frozenset({"metadata.name"})
        self.terminating = terminating  # the definition is being deleted, together with its objects

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
        if old is None and self.terminating:
            raise MethodNotAllowed("create not allowed while custom resource definition is terminating")
        return obj

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        return {label: _text(_at(obj, path)) for label, path in self._paths.items()}

    def check_field_labels(self, labels: Iterable[str]) -> None:
        for label in labels:
            if label not in self.field_labels and label not in self.metadata_labels:
                raise BadRequest(f"field label not supported: {label}")


def _at(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
