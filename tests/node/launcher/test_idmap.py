"""The ID map maps one user to another and all others to themselves."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sandpool.node.launcher.idmap import id_map

ids = st.integers(0, 70_000)


def shown(mapping: str, owner: int) -> int | None:
    for line in mapping.splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= owner < inside + count:
            return outside + owner - inside
    return None


@given(ids, st.integers(200_000, 300_000), ids)
def test_other_users_are_mapped_to_themselves(inside: int, outside: int, other: int) -> None:
    mapping = id_map(inside, outside)
    assert shown(mapping, inside) == outside
    assert shown(mapping, other) == (outside if other == inside else other)
    assert shown(mapping, outside) is None, "files of the sandbox's host user have no owner in an image"


def test_same_user_is_mapped_to_itself() -> None:
    assert shown(id_map(5, 5), 5) == 5


@given(ids, st.integers(200_000, 300_000))
def test_ranges_do_not_overlap(inside: int, outside: int) -> None:
    lines = [tuple(map(int, line.split())) for line in id_map(inside, outside).splitlines()]
    for column in (0, 1):
        ranges = sorted((line[column], line[column] + line[2]) for line in lines)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
