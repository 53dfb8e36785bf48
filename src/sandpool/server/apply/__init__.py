"""Field ownership: tracking of managedFields on every write, and server-side apply."""

from sandpool.server.apply.apply import apply, check_applied_kind
from sandpool.server.apply.fieldset import FieldSet
from sandpool.server.apply.managed_fields import ignore_time_only_change
from sandpool.server.apply.managers import (
    managed_fields_causes,
    manager_causes,
    manager_from_user_agent,
    validate_manager,
)
from sandpool.server.apply.reset_fields import RESET_ALL_BUT_STATUS, RESET_STATUS, reset_fields
from sandpool.server.apply.scale import scale_managed_fields, scaled_managed_fields
from sandpool.server.apply.update import track_update

__all__ = [
    "RESET_ALL_BUT_STATUS",
    "RESET_STATUS",
    "FieldSet",
    "apply",
    "check_applied_kind",
    "ignore_time_only_change",
    "managed_fields_causes",
    "manager_causes",
    "manager_from_user_agent",
    "reset_fields",
    "scale_managed_fields",
    "scaled_managed_fields",
    "track_update",
    "validate_manager",
]
