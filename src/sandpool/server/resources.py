"""The served resources: the built-in kinds and those that CRDs define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from sandpool.api.columns import Column
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.admit import Admission, compile_admission, compile_defaults
from sandpool.api.schema.core import OBJECT_META, definition
from sandpool.api.schema.shape import Shape
from sandpool.server.kinds.strategies import KindStrategy

Conversion = Callable[[Object], Object]


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The fields behind the scale subresource, as JSON paths like ``.spec.replicas``."""

    spec: str
    status: str
    selector: str = ""


@dataclass(eq=False)
class Resource:
    """One served resource of one version, with everything that a request for it needs.

    All versions of a resource share one stored form; ``to_stored`` and ``from_stored`` convert, and are None where this
    version is the stored one. Shapes are built on first use, because most kinds are never requested.
    """

    type: ResourceType
    shape_source: Callable[[], Shape]
    strategy: KindStrategy
    columns: tuple[Column, ...] = ()
    custom: bool = False
    scale: ScalePaths | None = None
    storage: str = ""  # the group resource under which the store keeps the objects
    to_stored: Conversion | None = None
    from_stored: Conversion | None = None
    deprecation_warning: str = ""

    def __post_init__(self) -> None:
        self.storage = self.storage or self.type.group_resource

    @cached_property
    def shape(self) -> Shape:
        return self.shape_source()

    @cached_property
    def admit(self) -> Admission:
        return compile_admission(self.shape)

    @cached_property
    def typed(self) -> Shape:
        """The shape of the whole object. The schema of a custom resource leaves out the fields that all objects
        have; this one includes them."""
        if not self.custom:
            return self.shape
        common = {"apiVersion": Shape(type="string"), "kind": Shape(type="string"), "metadata": definition(OBJECT_META)}
        return replace(self.shape, properties={**self.shape.properties, **common})

    @cached_property
    def fill(self) -> Callable[[Object], Object] | None:
        """Applies defaults when an object is read; None for built-in kinds, which are defaulted when written."""
        return compile_defaults(self.shape) if self.custom else None

    @property
    def has_status(self) -> bool:
        return "status" in self.type.subresources


@dataclass
class ResourceTable:
    """Maps paths to resources. ``generation`` changes with the set, so that documents made from it can be cached."""

    generation: int = 0
    _by_path: dict[tuple[str, str, str], Resource] = field(default_factory=dict)

    def add(self, resource: Resource) -> None:
        type = resource.type
        self._by_path[type.group, type.version, type.plural] = resource
        self.generation += 1

    def replace(self, storage: str, resources: Iterable[Resource]) -> None:
        """Serve these resources, and no others that are stored under the same group resource."""
        self._by_path = {path: each for path, each in self._by_path.items() if each.storage != storage}
        self.generation += 1
        for resource in resources:
            self.add(resource)

    def get(self, group: str, version: str, plural: str) -> Resource | None:
        return self._by_path.get((group, version, plural))

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._by_path.values()))

    def __len__(self) -> int:
        return len(self._by_path)

    def stored(self) -> dict[str, Resource]:
        """One resource for each stored group resource: the version that objects are stored in."""
        found: dict[str, Resource] = {}
        for resource in self._by_path.values():
            if "list" in resource.type.verbs and (resource.storage not in found or resource.to_stored is None):
                found[resource.storage] = resource
        return found
