from __future__ import annotations

from typing import Any

import pytest

from sandpool.router.gateway_api import HTTP_ROUTE
from sandpool.router.routes import Listener, PathMatch, PortRoutes, Route, is_gateway
from sandpool.testing.objects import new

ROUTER = {"name": "sandbox-router-svc", "port": 8080}
HERE = Listener("http", 80)
PARENT = {"name": "gate"}


def route(
    *, hostnames: list[str] | None = None, namespace: str = "default", backends: Any = None, **rule: Any
) -> Route:
    rules = [{"backendRefs": [ROUTER] if backends is None else backends, **rule}]
    spec = {"parentRefs": [PARENT], "rules": rules, **({"hostnames": hostnames} if hostnames else {})}
    return Route.from_object(new(HTTP_ROUTE, "route", metadata={"namespace": namespace}, spec=spec))


def path(value: str, kind: str = "PathPrefix") -> dict[str, Any]:
    return {"matches": [{"path": {"type": kind, "value": value}}]}


@pytest.mark.parametrize(
    ("prefix", "asked", "leads"),
    [
        ("/", "/", True),
        ("/", "/a", True),
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a/", "/a/b", True),
        ("/a/", "/a", True),
        ("/a", "/ab", False),
        ("/a", "/", False),
        ("/a", "/A", False),
    ],
)
def test_prefix_matches_whole_segments(prefix: str, asked: str, leads: bool) -> None:
    assert PathMatch(prefix).matches(asked) is leads


def test_exact_path_matches_only_itself() -> None:
    assert PathMatch("/a", exact=True).matches("/a")
    assert not PathMatch("/a", exact=True).matches("/a/b")


@pytest.mark.parametrize(
    ("hostnames", "host", "admitted"),
    [
        ([], "anything", True),
        (["a.example"], "a.example", True),
        (["a.example"], "A.example:8080", True),
        (["a.example"], "b.a.example", False),
        (["*.example"], "a.example", True),
        (["*.example"], "b.a.example", True),
        (["*.example"], "example", False),
        (["*.example"], ".example", False),
        (["a.example", "b.example"], "b.example:80", True),
    ],
)
def test_hostnames_match_with_wildcards(hostnames: list[str], host: str, admitted: bool) -> None:
    assert PortRoutes(((HERE, route(hostnames=hostnames)),)).admits(host, "/") is admitted


def test_listener_is_limited_to_its_hostname() -> None:
    gate = PortRoutes(((Listener("http", 80, "a.example"), route()),))
    assert gate.admits("a.example", "/")
    assert not gate.admits("b.example", "/")


def test_routes_limit_what_is_admitted() -> None:
    assert PortRoutes(None).admits("any-user", "/anywhere")
    assert not PortRoutes(()).admits("any-user", "/anywhere")
    gate = PortRoutes(((HERE, route(**path("/a"))), (HERE, route(**path("/b", "Exact")))))
    assert [gate.admits("x", each) for each in ("/a/1", "/b", "/b/1", "/c")] == [True, True, False, False]


def test_encoded_path_matches_like_the_plain_one() -> None:
    gate = PortRoutes(((HERE, route(**path("/%7euser"))),))
    assert gate.admits("x", "/~user/1")


def test_route_to_the_router_is_accepted() -> None:
    verdict = route().judge(PARENT, [HERE])
    assert verdict.is_effective
    assert verdict.listeners == (HERE,)


@pytest.mark.parametrize(
    ("given", "reference", "accepted", "resolved", "message"),
    [
        (route(backends=[{"name": "other", "port": 80}]), {}, "", "BackendNotFound", "other is not the router"),
        (route(backends=[]), {}, "", "BackendNotFound", "nothing is not the router"),
        (route(backends=[{**ROUTER, "port": 22}]), {}, "", "BackendNotFound", "is not the router"),
        (route(backends=[{**ROUTER, "namespace": "theirs"}]), {}, "", "BackendNotFound", "is not the router"),
        (route(backends=[ROUTER, {"name": "b"}]), {}, "", "BackendNotFound", "b is not the router"),
        (route(filters=[{"type": "URLRewrite"}]), {}, "UnsupportedValue", "", "a filter is not supported"),
        (route(matches=[{"method": "GET"}]), {}, "UnsupportedValue", "", "a match of method is not supported"),
        (route(**path("/", "RegularExpression")), {}, "UnsupportedValue", "", "type RegularExpression"),
        (route(**path("/a/../b")), {}, "UnsupportedValue", "", "the path /a/../b is not supported"),
        (route(**path("/a//b", "Exact")), {}, "UnsupportedValue", "", "the path /a//b is not supported"),
        (route(**path("/a%2Fb")), {}, "UnsupportedValue", "", "the path /a%2Fb is not supported"),
        (route(**path("a")), {}, "UnsupportedValue", "", "the path a is not supported"),
        (route(), {"sectionName": "https"}, "NoMatchingParent", "", "no such listener"),
        (route(), {"port": 443}, "NoMatchingParent", "", "no such listener"),
        (route(namespace="agent-sandbox-system"), {"namespace": "default"}, "NotAllowedByListeners", "", "its own"),
    ],
)
def test_invalid_route_is_reported_in_its_status(
    given: Route, reference: dict[str, Any], accepted: str, resolved: str, message: str
) -> None:
    verdict = given.judge({**PARENT, **reference}, [HERE])
    assert (verdict.accepted, verdict.resolved) == (accepted, resolved)
    assert message in verdict.message
    assert not verdict.is_effective


def test_listener_accepts_routes_of_all_namespaces() -> None:
    elsewhere = route(namespace="agent-sandbox-system")
    assert elsewhere.judge({**PARENT, "namespace": "default"}, [Listener("http", 80, all_namespaces=True)]).is_effective


def test_route_without_a_common_hostname_is_not_accepted() -> None:
    verdict = route(hostnames=["a.example"]).judge(PARENT, [Listener("http", 80, "*.test")])
    assert verdict.accepted == "NoMatchingListenerHostname"
    assert route(hostnames=["*.test"]).judge(PARENT, [Listener("http", 80, "a.test")]).is_effective


def test_other_parents_than_gateways_are_ignored() -> None:
    assert is_gateway({"name": "gate"})
    assert not is_gateway({"name": "gate", "kind": "Service", "group": ""})
