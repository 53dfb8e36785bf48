from __future__ import annotations

from sandpool.api.columns import AGE, Column, from_printer_columns, to_printer_columns


def test_columns_are_unchanged_by_a_round_trip() -> None:
    columns = (
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
        Column("Desired", "integer", ".spec.replicas", description="how many", format="int32", priority=1),
        AGE,
    )
    assert from_printer_columns(to_printer_columns(columns)) == columns


def test_empty_fields_of_a_column_are_left_out() -> None:
    assert to_printer_columns([AGE]) == [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]
