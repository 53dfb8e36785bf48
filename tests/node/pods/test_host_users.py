"""Users of pods on the host."""

from __future__ import annotations

import os

from sandpool.node.pods.host_users import HostUsers, OwnUser


def test_each_pod_gets_its_own_user() -> None:
    users = HostUsers(10)
    assert [users.take() for _ in range(3)] == [10, 11, 12]


def test_lowest_free_user_is_allocated_first() -> None:
    users = HostUsers(10)
    for _ in range(4):
        users.take()
    users.give_back(12)
    users.give_back(10)
    users.give_back(10)
    assert [users.take() for _ in range(3)] == [10, 12, 14]


def test_users_of_an_earlier_agent_stay_taken() -> None:
    users = HostUsers(10, taken=[10, 12])
    assert [users.take() for _ in range(3)] == [11, 13, 14]
    users.give_back(12)
    assert users.take() == 12


def test_user_returned_early_is_allocated_once() -> None:
    users = HostUsers(10, taken=[11])
    users.give_back(11)
    assert sorted(users.take() for _ in range(4)) == [10, 11, 12, 13]


def test_unprivileged_pods_share_the_nodes_user() -> None:
    users = OwnUser()
    assert users.take() == users.take() == os.geteuid()
    assert users.group_of(users.take()) == os.getegid()
    users.give_back(os.geteuid())
    assert users.take() == os.geteuid()
