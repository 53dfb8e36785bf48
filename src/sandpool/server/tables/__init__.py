"""Server-side printing: objects as the meta.k8s.io Tables that ``kubectl get`` shows."""

from sandpool.server.tables.table import partial_metadata, partial_metadata_list, table
from sandpool.server.tables.transform import check_include_object, transform_event, transform_response

__all__ = [
    "check_include_object",
    "partial_metadata",
    "partial_metadata_list",
    "table",
    "transform_event",
    "transform_response",
]
