"""Requestheader authentication of the aggregation layer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from sandpool.engine.clock import SystemClock
from sandpool.kube.errors import Unauthorized
from sandpool.server.aggregated.request_header import InvalidConfig, RequestHeaderAuthenticator, RequestHeaderConfig
from sandpool.server.auth.certificates import PeerCertificate
from sandpool.server.request.messages import User
from sandpool.server.serving.pki import Authority
from sandpool.testing.clock import ManualClock

PROXY = "front-proxy-client"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Authority(tmp_path_factory.mktemp("pki"), SystemClock()).ca_pem


def data(ca: str, **changes: Any) -> dict[str, str]:
    """The ConfigMap of a cluster with the usual flags."""
    lists = {
        "requestheader-allowed-names": [PROXY],
        "requestheader-username-headers": ["X-Remote-User"],
        "requestheader-uid-headers": ["X-Remote-Uid"],
        "requestheader-group-headers": ["X-Remote-Group"],
        "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
        **{f"requestheader-{key.replace('_', '-')}": value for key, value in changes.items()},
    }
    return {"requestheader-client-ca-file": ca, **{key: orjson.dumps(value).decode() for key, value in lists.items()}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authenticator(ca: str, clock: ManualClock) -> RequestHeaderAuthenticator:
    return RequestHeaderAuthenticator(RequestHeaderConfig.read(data(ca)), clock)


def proxy(clock: ManualClock, name: str = PROXY) -> PeerCertificate:
    return PeerCertificate(User(name, ("system:masters",)), clock.now().timestamp() + 60)


def test_forwarded_user_is_read_from_the_headers(authenticator: RequestHeaderAuthenticator, clock: ManualClock) -> None:
    fields = [
        ("x-remote-user", "alice"),
        ("x-remote-uid", "42"),
        ("x-remote-group", "a, b"),
        ("x-remote-group", "c"),
        ("x-remote-extra-example.com%2fscopes", "read"),
        ("x-remote-extra-example.com%2fscopes", "write"),
        ("x-other", "z"),
    ]
    assert authenticator.authenticate({}, proxy(clock), fields) == User(
        "alice", ("a, b", "c", "system:authenticated"), "42", {"example.com/scopes": ("read", "write")}
    )


def test_names_outside_ascii_are_utf_8(authenticator: RequestHeaderAuthenticator, clock: ManualClock) -> None:
    user = authenticator.authenticate({}, proxy(clock), [("x-remote-user", "Zoë".encode().decode("latin-1"))])
    assert user is not None
    assert user.name == "Zoë"
    with pytest.raises(Unauthorized):
        authenticator.authenticate({}, proxy(clock), [("x-remote-user", "\xff")])


def test_headers_without_a_certificate_are_ignored(authenticator: RequestHeaderAuthenticator) -> None:
    fields = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")]
    assert authenticator.authenticate({"x-remote-user": "admin"}, None, fields) is None


def test_another_common_name_of_the_same_ca_is_refused(
    authenticator: RequestHeaderAuthenticator, clock: ManualClock
) -> None:
    with pytest.raises(Unauthorized):
        authenticator.authenticate({}, proxy(clock, "kubelet"), [("x-remote-user", "admin")])


def test_every_common_name_is_allowed_if_none_is_listed(ca: str, clock: ManualClock) -> None:
    authenticator = RequestHeaderAuthenticator(RequestHeaderConfig.read(data(ca, allowed_names=[])), clock)
    assert authenticator.authenticate({}, proxy(clock, "anyone"), [("x-remote-user", "alice")]) is not None


def test_expired_certificate_is_refused(authenticator: RequestHeaderAuthenticator, clock: ManualClock) -> None:
    expired = PeerCertificate(User(PROXY), clock.now().timestamp())
    with pytest.raises(Unauthorized):
        authenticator.authenticate({}, expired, [("x-remote-user", "alice")])


@pytest.mark.parametrize("fields", [[], [("x-remote-user", "")], [("x-remote-group", "system:masters")]])
def test_proxy_that_names_no_user_is_unauthenticated(
    authenticator: RequestHeaderAuthenticator, clock: ManualClock, fields: list[tuple[str, str]]
) -> None:
    assert authenticator.authenticate({}, proxy(clock), fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        [("x-remote-user", "system:anonymous"), ("x-remote-group", "system:unauthenticated")],
        [("x-remote-user", "other"), ("x-remote-group", "system:unauthenticated")],
    ],
)
def test_anonymous_users_stay_unauthenticated(
    authenticator: RequestHeaderAuthenticator, clock: ManualClock, fields: list[tuple[str, str]]
) -> None:
    user = authenticator.authenticate({}, proxy(clock), fields)
    assert user is not None
    assert user.groups == ("system:unauthenticated",)


def test_configured_header_names_are_used_in_their_order(ca: str, clock: ManualClock) -> None:
    config = RequestHeaderConfig.read(data(ca, username_headers=["X-First", "X-Second"]))
    authenticator = RequestHeaderAuthenticator(config, clock)
    fields = [("x-remote-user", "no"), ("x-second", "second"), ("x-first", "")]
    user = authenticator.authenticate({}, proxy(clock), fields)
    assert user is not None
    assert user.name == "second"


def test_replaced_config_decides_about_the_next_request(
    authenticator: RequestHeaderAuthenticator, ca: str, clock: ManualClock
) -> None:
    authenticator.config = RequestHeaderConfig.read(data(ca, allowed_names=["another"]))
    with pytest.raises(Unauthorized):
        authenticator.authenticate({}, proxy(clock), [("x-remote-user", "alice")])


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"requestheader-client-ca-file": ""}, "--requestheader-client-ca-file"),
        ({"requestheader-client-ca-file": "nonsense"}, "no certificate"),
        ({"requestheader-allowed-names": "["}, "not JSON"),
        ({"requestheader-group-headers": "{}"}, "not a list"),
        ({"requestheader-username-headers": "[1]"}, "not a list"),
    ],
)
def test_unusable_config_map_is_refused(ca: str, broken: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        RequestHeaderConfig.read({**data(ca), **broken})


def test_missing_uid_header_of_an_older_cluster_is_no_error(ca: str) -> None:
    old = data(ca)
    del old["requestheader-uid-headers"]
    assert RequestHeaderConfig.read(old).uid_headers == ()
