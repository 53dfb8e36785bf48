"""The record in a Lease object."""

from __future__ import annotations

from datetime import UTC, datetime

from sandpool.engine.leaderelection import LeaseRecord

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def test_record_is_read_as_written() -> None:
    record = LeaseRecord("one", 15, 3, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:01.000000Z")
    assert LeaseRecord.read({"spec": record.spec()}) == record


def test_lease_without_spec_is_read() -> None:
    """An administrator may have created the object; its first holder counts as a transition."""
    record = LeaseRecord.read({"metadata": {"name": "a"}})
    assert (record.holder, record.duration, record.transitions) == ("", 0, 0)


def test_renewal_keeps_transitions_and_acquire_time() -> None:
    record = LeaseRecord("one", 15, 3, "before", "before").taken_by("one", 20, NOW)
    assert record == LeaseRecord("one", 20, 3, "before", "2026-01-02T03:04:05.000678Z")


def test_change_of_holder_counts_a_transition() -> None:
    record = LeaseRecord("one", 15, 3, "before", "before").taken_by("two", 15, NOW)
    assert record == LeaseRecord("two", 15, 4, "2026-01-02T03:04:05.000678Z", "2026-01-02T03:04:05.000678Z")


def test_first_holder_of_a_new_lease_counts_no_transition() -> None:
    assert LeaseRecord().taken_by("one", 15, NOW).transitions == 0


def test_released_record_has_no_holder() -> None:
    record = LeaseRecord("one", 15, 3, "before", "before").released(NOW)
    assert (record.holder, record.duration, record.transitions) == ("", 1, 3)
