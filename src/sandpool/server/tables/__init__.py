"""What ``kubectl get`` shows: the server turns objects into rows of cells, so that every client prints them alike."""

from sandpool.server.tables.partial import partial_metadata, partial_metadata_list
from sandpool.server.tables.table import table
from sandpool.server.tables.transform import answer_as, check_include_object, event_as

__all__ = ["answer_as", "check_include_object", "event_as", "partial_metadata", "partial_metadata_list", "table"]
