"""Policy rules: what they allow and what they contain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.server.auth.rules import MOST_REPORTED, Rule, TooManyPermissions, missing
from sandpool.server.request.request_info import RequestInfo


def rule(verbs: str, groups: str = "", resources: str = "", names: str = "", urls: str = "") -> Rule:
    """Words separated by spaces; ``core`` is the core group."""
    return Rule(
        tuple(verbs.split()),
        tuple("" if group == "core" else group for group in groups.split()),
        tuple(resources.split()),
        tuple(names.split()),
        tuple(urls.split()),
    )


def ask(verb: str, group: str, resource: str, subresource: str = "") -> RequestInfo:
    return RequestInfo("", verb, True, group, "v1", resource, subresource)


@pytest.mark.parametrize(
    ("allowing", "asked", "allowed"),
    [
        (rule("get", "core", "pods"), ask("get", "", "pods"), True),
        (rule("get", "core", "pods"), ask("list", "", "pods"), False),
        (rule("get", "core", "pods"), ask("get", "apps", "pods"), False),
        (rule("get", "core", "pods"), ask("get", "", "nodes"), False),
        (rule("*", "*", "*"), ask("anything", "x.io", "things", "sub"), True),
        (rule("get list", "core apps", "pods deployments"), ask("list", "apps", "pods"), True),
        (rule("get", "core", "pods"), ask("get", "", "pods", "log"), False),
        (rule("get", "core", "pods/log"), ask("get", "", "pods", "log"), True),
        (rule("get", "core", "pods/log"), ask("get", "", "pods"), False),
        (rule("get", "core", "*/log"), ask("get", "", "pods", "log"), True),
        (rule("get", "core", "*/log"), ask("get", "", "pods", "status"), False),
        (rule("get", "core", "pods/*"), ask("get", "", "pods", "log"), False),
        (rule("get", urls="/healthz"), RequestInfo("/healthz", "get"), True),
        (rule("get", urls="/healthz"), RequestInfo("/healthz/etcd", "get"), False),
        (rule("get", urls="/healthz/*"), RequestInfo("/healthz/etcd", "get"), True),
        (rule("get", urls="*"), RequestInfo("/anything", "get"), True),
        (rule("get", urls="*"), RequestInfo("/anything", "post"), False),
        (rule("*", "*", "*"), RequestInfo("/anything", "get"), False),
        (rule("*", urls="*"), ask("get", "", "pods"), False),
    ],
)
def test_rule_allows_matching_requests(allowing: Rule, asked: RequestInfo, allowed: bool) -> None:
    assert allowing.allows_some_name(asked) is allowed


@pytest.mark.parametrize(
    ("held", "granted", "lacking"),
    [
        (["get core pods"], ["get core pods"], []),
        (["* * *"], ["get,list core,apps pods,nodes/status"], []),
        (["get core pods"], ["get,list core pods"], ['{APIGroups:[""], Resources:["pods"], Verbs:["list"]}']),
        (
            ["get core pods"],
            ["get,list core pods,secrets"],
            [
                '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}',
                '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}',
            ],
        ),
        (["get core pods", "list core pods"], ["get,list core pods"], []),
        (["get core pods a"], ["get core pods"], ['{APIGroups:[""], Resources:["pods"], Verbs:["get"]}']),
        (["get core pods a"], ["get core pods a"], []),
        (["get core pods"], ["get core pods a,b"], []),
        (
            ["get core pods a"],
            ["get core pods a,b"],
            ['{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}'],
        ),
        (["get core */scale"], ["get core pods/scale"], []),
        (["get core pods/scale"], ["get core */scale"], ['{APIGroups:[""], Resources:["*/scale"], Verbs:["get"]}']),
        (["get core pods"], ["* core pods"], ['{APIGroups:[""], Resources:["pods"], Verbs:["*"]}']),
        (["get core pods"], ["get * pods"], ['{APIGroups:["*"], Resources:["pods"], Verbs:["get"]}']),
    ],
)
def test_missing_lists_uncovered_permissions(held: list[str], granted: list[str], lacking: list[str]) -> None:
    def read(text: str) -> Rule:
        return rule(*(word.replace(",", " ") for word in text.split()))

    assert [str(each) for each in missing(map(read, held), map(read, granted))] == lacking


@pytest.mark.parametrize(
    ("held", "granted", "covered"),
    [("/a", "/a", True), ("/a/*", "/a/b", True), ("/a/*", "/a/b/*", True), ("/a/b", "/a/*", False), ("*", "/x", True)],
)
def test_missing_lists_uncovered_urls(held: str, granted: str, covered: bool) -> None:
    lacking = missing([rule("get", urls=held)], [rule("get", urls=granted)])
    assert [str(each) for each in lacking] == ([] if covered else [f'{{NonResourceURLs:["{granted}"], Verbs:["get"]}}'])


words = st.lists(st.sampled_from(["*", "a", "b", "c"]), min_size=1, max_size=3, unique=True).map(tuple)
resources = st.lists(st.sampled_from(["*", "a", "b", "a/x", "*/x", "b/y"]), min_size=1, max_size=3, unique=True).map(
    tuple
)
names = st.lists(st.sampled_from(["n", "m"]), max_size=2, unique=True).map(tuple)
some_rules = st.lists(st.builds(Rule, words, words, resources, names), max_size=4)
requests = st.builds(
    ask, st.sampled_from(["a", "b", "z"]), st.sampled_from(["a", "b", "z"]), st.sampled_from(["a", "b", "z"])
)


def allows(rules: list[Rule], asked: RequestInfo, name: str) -> bool:
    return any(each.allows_some_name(asked) and (not each.names or name in each.names) for each in rules)


@given(some_rules, some_rules, requests, st.sampled_from(["n", "m", "other"]))
def test_covered_rule_allows_no_more_than_the_held_rules(
    held: list[Rule], granted: list[Rule], asked: Any, name: str
) -> None:
    """The property escalation checks rest on: if nothing is missing, nothing new becomes possible."""
    if not missing(held, granted) and allows(granted, asked, name):
        assert allows(held, asked, name)


@given(some_rules)
def test_every_rule_set_covers_itself(held: list[Rule]) -> None:
    assert missing(held, held) == []


@contextmanager
def at_most(calls: int) -> Iterator[None]:
    """Fail as soon as the block has made more function calls than this."""
    made = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal made
        made += event == "call"
        if made > calls:
            sys.setprofile(None)
            raise AssertionError(f"more than {calls} calls")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def many(prefix: str, count: int = 300) -> str:
    return " ".join(f"{prefix}{number}" for number in range(count))


def test_small_role_with_billions_of_permissions_is_rejected_after_bounded_work() -> None:
    held = [rule("get", "core", f"held{number}") for number in range(50)] + [rule("*", many("g"), many("r"), "only")]
    granted = [rule(many("v"), many("g"), many("r"), many("n"))]
    with at_most(calls=300_000), pytest.raises(TooManyPermissions):
        missing([*held, rule("*", many("g"), many("r"), many("n", 299))], granted)


def test_missing_permissions_are_reported_up_to_a_bound() -> None:
    with at_most(calls=50_000):
        lacking = missing([rule("get", "core", "pods")], [rule(many("v"), many("g"), many("r"))])
    assert len(lacking) == MOST_REPORTED


def test_held_rule_covers_a_large_one_without_enumerating_it() -> None:
    large = rule(many("v", 1000), many("g", 1000), many("r", 1000), many("n", 1000))
    with at_most(calls=10_000):
        assert missing([rule("get", "core", "pods"), large], [large]) == []
        assert missing([rule("*", "*", "*")], [large]) == []


def test_request_is_checked_against_a_large_rule_in_few_steps() -> None:
    large = rule(many("v", 1000), many("g", 1000), many("r", 1000), urls=many("/u", 1000))
    with at_most(calls=20):
        assert large.allows_some_name(ask("v999", "g999", "r999"))
        assert not large.allows_some_name(ask("v999", "g999", "r1000"))
        assert large.allows_some_name(RequestInfo("/u999", "v0"))
