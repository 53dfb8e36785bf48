"""Waiting claims: first come, first served, also between those who want anything and those who want one thing."""

from __future__ import annotations

from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest, WaitQueue

POOL = ("default", "pool")


def claim(name: str) -> tuple[str, str]:
    return "default", name


def request(name: str, compatibility: str | None = None) -> SandboxRequest:
    return SandboxRequest(claim(name), POOL, compatibility)


def served(room: WaitQueue, compatibility: str = "new") -> str | None:
    waiter = room.serve(POOL, compatibility)
    return None if waiter is None else waiter.request.claim[1]


def test_first_come_first_served() -> None:
    room = WaitQueue()
    for name in "abc":
        room.join(request(name))
    assert [served(room) for _ in range(4)] == ["a", "b", "c", None]


def test_who_wants_one_thing_and_who_wants_any_stand_in_one_order() -> None:
    room = WaitQueue()
    room.join(request("a", "new"))
    room.join(request("b"))
    room.join(request("c", "new"))
    assert [served(room) for _ in range(3)] == ["a", "b", "c"]


def test_nobody_is_served_what_they_cannot_use() -> None:
    room = WaitQueue()
    room.join(request("a", "new"))
    room.join(request("b"))
    assert served(room, "old") == "b"
    assert served(room, "old") is None
    assert room.serve(("default", "other"), "new") is None


def test_asking_again_keeps_the_place() -> None:
    room = WaitQueue()
    room.join(request("a"))
    room.join(request("b"))
    room.join(request("a"))
    assert served(room) == "a"


def test_wishing_something_else_means_going_to_the_end() -> None:
    room = WaitQueue()
    room.join(request("a"))
    room.join(request("b"))
    room.join(request("a", "new"))
    assert [served(room), served(room)] == ["b", "a"]


def test_who_leaves_is_not_served() -> None:
    room = WaitQueue()
    room.join(request("a"))
    room.join(request("b"))
    room.leave(claim("a"))
    room.leave(claim("a"))
    assert claim("a") not in room
    assert len(room) == room.waiting(POOL, None) == 1
    assert served(room) == "b"


def test_who_was_served_in_vain_stands_where_it_stood() -> None:
    room = WaitQueue()
    for name in "abc":
        room.join(request(name))
    a, b = room.serve(POOL, "new"), room.serve(POOL, "new")
    assert a is not None
    assert b is not None
    room.rejoin(a)
    room.rejoin(b)
    assert [served(room) for _ in range(3)] == ["a", "b", "c"]


def test_lines_that_are_empty_are_gone() -> None:
    room = WaitQueue()
    for number in range(100):
        room.join(request("a", str(number)))
    assert len(room._lines) == 1
    room.leave(claim("a"))
    assert room._lines == {}
