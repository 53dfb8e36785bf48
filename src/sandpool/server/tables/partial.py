"""Objects reduced to their metadata, for clients that count, own or collect objects of any kind."""

from __future__ import annotations

from sandpool.api.resource import Object


def partial_metadata(obj: Object, version: str = "v1") -> Object:
    """The meta.k8s.io PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj.get("metadata") or {},
    }


def partial_metadata_list(listing: Object, version: str = "v1") -> Object:
    """The meta.k8s.io PartialObjectMetadataList of a list."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": listing.get("metadata") or {},
        "items": [partial_metadata(obj, version) for obj in listing.get("items") or ()],
    }
