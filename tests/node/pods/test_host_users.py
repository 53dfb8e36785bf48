"""Users of pods on the host."""

from __future__ import annotations

import os

from sandpool.node.pods.host_users import HostUsers, OwnUser


def test_everybody_is_somebody_else() -> None:
    users = HostUsers(10)
    assert [users.take() for _ in range(3)] == [10, 11, 12]


def test_the_lowest_that_is_free_comes_first() -> None:
    users = HostUsers(10)
    for _ in range(4):
        users.take()
    users.give_back(12)
    users.give_back(10)
    users.give_back(10)
    assert [users.take() for _ in range(3)] == [10, 12, 14]


def test_who_was_there_before_keeps_the_number() -> None:
    users = HostUsers(10, taken=[10, 12])
    assert [users.take() for _ in range(3)] == [11, 13, 14]
    users.give_back(12)
    assert users.take() == 12


def test_one_that_is_returned_before_its_turn_is_given_out_once() -> None:
    users = HostUsers(10, taken=[11])
    users.give_back(11)
    assert sorted(users.take() for _ in range(4)) == [10, 11, 12, 13]


def test_without_privileges_everybody_is_who_we_are() -> None:
    users = OwnUser()
    assert users.take() == users.take() == os.geteuid()
    assert users.group_of(users.take()) == os.getegid()
    users.give_back(os.geteuid())
    assert users.take() == os.geteuid()
