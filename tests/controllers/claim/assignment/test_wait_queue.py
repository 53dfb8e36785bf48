"""The wait queue: claims are served in order of arrival."""

from __future__ import annotations

from sandpool.api.resource import Key
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest, WaitQueue

POOL = Key("default", "pool")


def claim(name: str) -> Key:
    return Key("default", name)


def request(name: str, compatibility: str | None = None) -> SandboxRequest:
    return SandboxRequest(claim(name), POOL, compatibility)


def served(room: WaitQueue, compatibility: str = "new") -> str | None:
    waiter = room.serve(POOL, compatibility)
    return None if waiter is None else waiter.request.claim[1]


def test_claims_are_served_in_arrival_order() -> None:
    room = WaitQueue()
    for name in "abc":
        room.join(request(name))
    assert [served(room) for _ in range(4)] == ["a", "b", "c", None]


def test_requests_for_one_revision_and_for_any_share_one_order() -> None:
    room = WaitQueue()
    room.join(request("a", "new"))
    room.join(request("b"))
    room.join(request("c", "new"))
    assert [served(room) for _ in range(3)] == ["a", "b", "c"]


def test_waiter_is_not_served_an_incompatible_sandbox() -> None:
    room = WaitQueue()
    room.join(request("a", "new"))
    room.join(request("b"))
    assert served(room, "old") == "b"
    assert served(room, "old") is None
    assert room.serve(Key("default", "other"), "new") is None


def test_joining_again_keeps_the_place() -> None:
    room = WaitQueue()
    room.join(request("a"))
    room.join(request("b"))
    room.join(request("a"))
    assert served(room) == "a"


def test_changed_request_joins_at_the_end() -> None:
    room = WaitQueue()
    room.join(request("a"))
    room.join(request("b"))
    room.join(request("a", "new"))
    assert [served(room), served(room)] == ["b", "a"]


def test_claim_that_left_is_not_served() -> None:
    room = WaitQueue()
    room.join(request("a"))
    room.join(request("b"))
    room.leave(claim("a"))
    room.leave(claim("a"))
    assert claim("a") not in room
    assert len(room) == room.waiting(POOL, None) == 1
    assert served(room) == "b"


def test_claim_that_rejoins_gets_its_old_place() -> None:
    room = WaitQueue()
    for name in "abc":
        room.join(request(name))
    a, b = room.serve(POOL, "new"), room.serve(POOL, "new")
    assert a is not None
    assert b is not None
    room.rejoin(a)
    room.rejoin(b)
    assert [served(room) for _ in range(3)] == ["a", "b", "c"]


def test_empty_queues_are_removed() -> None:
    room = WaitQueue()
    for number in range(100):
        room.join(request("a", str(number)))
    assert len(room._lines) == 1
    room.leave(claim("a"))
    assert room._lines == {}
