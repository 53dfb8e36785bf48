"""The strategy of a kind: everything about writes that differs from kind to kind.

The registry stores, versions and watches objects of any kind; a ``KindStrategy`` defaults, validates and deletes
objects of one. The word is Kubernetes' own (``rest.RESTCreateStrategy``). All methods are pure and copy-on-write: they
return their argument if nothing changes, and share every subtree that they do not change. ``new is old`` therefore
means "unchanged", and strategies use it to skip subtrees that were defaulted and validated when they were stored.

A write calls the methods in this order, after the object was decoded and pruned by the schema of its type::

    create   default -> admit -> prepare_create -> validate
    update   default -> admit -> prepare_update -> validate(new, old)
    status   default -> prepare_status_update -> validate_status(new, old)
    delete   check_delete -> grace_period -> prepare_delete, and removed once no finalizer and not ``blocks_removal``
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.kube.errors import BadRequest

#: Field selectors of every kind.
METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})


class ClusterReader(Protocol):
    """The objects that a strategy may read to admit another object. All reads are served from memory."""

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None: ...

    def objects(self, group_resource: str) -> Iterable[Object]: ...


class KindStrategy:
    """The strategy of an ordinary kind with a spec and a status. Kinds override what differs."""

    #: The syntax of ``metadata.name``: a key of ``sandpool.server.names.FORMATS``.
    name_format: ClassVar[str] = "subdomain"
    #: A PUT of a missing object creates it.
    allow_create_on_update: ClassVar[bool] = False
    #: A PUT without a resourceVersion overwrites the current state.
    allow_unconditional_update: ClassVar[bool] = True
    #: ``metadata.generation`` exists: 1 at creation, one more whenever ``bumps_generation``.
    spec_generation: ClassVar[bool] = False
    #: Fields a field selector may name besides those of metadata; ``selectable_fields`` gives a value for each.
    field_labels: frozenset[str] = frozenset()
    metadata_labels: frozenset[str] = METADATA_FIELDS

    def default(self, obj: Object, old: Object | None = None) -> Object:
        """Set defaults. Subtrees shared with ``old`` have them already."""
        return obj

    def admit(self, obj: Object, old: Object | None, cluster: ClusterReader) -> Object:
        """Set or refuse what depends on other objects; raises ApiError to refuse."""
        return obj

    def prepare_create(self, obj: Object) -> Object:
        """Drop what a client may not set on create (the status), and set what every new object has.

        ``metadata`` has its name, uid and creationTimestamp already.
        """
        return obj

    def prepare_update(self, new: Object, old: Object) -> Object:
        """Restore what an update of the main resource may not change, apart from the status."""
        return new

    def prepare_status_update(self, new: Object, old: Object) -> Object:
        """Restore what an update of the status may not change, apart from the spec."""
        return new

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        return []

    def warnings(self, new: Object, old: Object | None) -> Sequence[str]:
        """Warnings for the client that writes a valid object; ``old`` is None on create."""
        return ()

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        return []

    def bumps_generation(self, new: Object, old: Object) -> bool:
        """Whether an update changes what ``metadata.generation`` counts."""
        spec, before = new.get("spec"), old.get("spec")
        return spec is not before and spec != before

    def check_delete(self, obj: Object) -> None:
        """Raise Forbidden when the object must not be deleted at all."""

    def grace_period(self, obj: Object, requested: int | None) -> int:
        """Seconds between the request to delete and the removal; 0 removes it now."""
        return 0

    def prepare_delete(self, obj: Object) -> Object:
        """Change the object when its deletionTimestamp is set for the first time."""
        return obj

    def blocks_removal(self, obj: Object) -> bool:
        """Whether an object with a deletionTimestamp stays although ``metadata.finalizers`` is empty."""
        return False

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        """The values of ``field_labels``."""
        return {}

    def check_field_labels(self, labels: Iterable[str]) -> None:
        """Raise BadRequest for a field selector that the kind does not support."""
        for label in labels:
            if label in self.field_labels or label in self.metadata_labels:
                continue
            if self.field_labels:
                raise BadRequest(f"field label not supported: {label}")
            raise BadRequest(f'"{label}" is not a known field selector: only "metadata.name", "metadata.namespace"')
