"""Policy rules: what they allow and what they contain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.server.auth.rules import Rule, missing
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
def test_allows(allowing: Rule, asked: RequestInfo, allowed: bool) -> None:
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
def test_missing(held: list[str], granted: list[str], lacking: list[str]) -> None:
    def read(text: str) -> Rule:
        return rule(*(word.replace(",", " ") for word in text.split()))

    assert [str(each) for each in missing(map(read, held), map(read, granted))] == lacking


@pytest.mark.parametrize(
    ("held", "granted", "covered"),
    [("/a", "/a", True), ("/a/*", "/a/b", True), ("/a/*", "/a/b/*", True), ("/a/b", "/a/*", False), ("*", "/x", True)],
)
def test_missing_urls(held: str, granted: str, covered: bool) -> None:
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
def test_what_is_covered_cannot_allow_more(held: list[Rule], granted: list[Rule], asked: Any, name: str) -> None:
    """The property escalation checks rest on: if nothing is missing, nothing new becomes possible."""
    if not missing(held, granted) and allows(granted, asked, name):
        assert allows(held, asked, name)


@given(some_rules)
def test_everybody_holds_what_they_hold(held: list[Rule]) -> None:
    assert missing(held, held) == []
