"""Groups of pods that fit no node."""

from __future__ import annotations

from sandpool.api.resource import Key
from sandpool.node.scheduling.requirements import PodRequirements
from sandpool.node.scheduling.unschedulable import UnschedulablePods

SMALL, LARGE = PodRequirements((("cpu", 1),), "", b""), PodRequirements((("cpu", 9),), "", b"")


def key(name: str) -> Key:
    return Key("default", name)


def offered(waiting: UnschedulablePods, room: int) -> list[str]:
    left = room

    def fits(requirements: PodRequirements) -> bool:
        nonlocal left
        amount = requirements.requests[0][1]
        if amount > left:
            return False
        left -= amount
        return True

    return [each.name for each in waiting.offer(fits)]


def filled(*pods: tuple[str, PodRequirements]) -> UnschedulablePods:
    waiting = UnschedulablePods()
    for name, requirements in pods:
        waiting.add(key(name), requirements)
    return waiting


def test_offers_follow_arrival_order_while_there_is_room() -> None:
    waiting = filled(("a", SMALL), ("b", SMALL), ("c", SMALL))
    assert offered(waiting, 2) == ["a", "b"]
    assert offered(waiting, 2) == ["c"]
    assert len(waiting) == 0


def test_group_that_does_not_fit_does_not_block_others() -> None:
    waiting = filled(("big", LARGE), ("a", SMALL))
    assert offered(waiting, 3) == ["a"]
    assert key("big") in waiting


def test_blocked_group_is_checked_once() -> None:
    waiting = filled(*((f"pod-{number}", LARGE) for number in range(100)))
    asked: list[PodRequirements] = []

    def full(requirements: PodRequirements) -> bool:
        asked.append(requirements)
        return False

    assert list(waiting.offer(full)) == []
    assert asked == [LARGE]


def test_removed_pod_is_not_offered() -> None:
    waiting = filled(("a", SMALL), ("b", SMALL))
    waiting.remove(key("a"))
    waiting.remove(key("a"))
    assert offered(waiting, 9) == ["b"]


def test_changed_requirements_move_the_pod_to_another_group() -> None:
    waiting = filled(("a", SMALL), ("b", SMALL))
    waiting.add(key("a"), LARGE)
    assert len(waiting) == 2
    assert offered(waiting, 8) == ["b"]


def test_pod_added_again_keeps_its_place() -> None:
    waiting = filled(("a", SMALL), ("b", SMALL), ("a", SMALL))
    assert offered(waiting, 1) == ["a"]
