"""User impersonation (``kubectl --as``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from sandpool.kube.errors import BadRequest, Forbidden
from sandpool.server.auth.groups import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED
from sandpool.server.auth.rbac import Authorizer, Decision
from sandpool.server.auth.service_accounts import account_groups, split_account
from sandpool.server.request.messages import User
from sandpool.server.request.request_info import RequestInfo

#: What the names of all headers about impersonation begin with, in lower case.
IMPERSONATION: Final = "impersonate-"
_USER, _GROUP, _UID, _EXTRA = "impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-"
_AUTHENTICATION = "authentication.k8s.io"


_UNSUPPORTED: Final = "impersonation is not supported here"


class NoImpersonation:
    """The authorizer of a server without impersonation: refuses it to every caller."""

    def authorize(self, user: User, info: RequestInfo) -> Decision:
        return Decision(False, _UNSUPPORTED)

    def require(self, user: User, info: RequestInfo) -> None:
        raise Forbidden(_UNSUPPORTED)


def impersonate(caller: User, headers: Iterable[tuple[str, str]], authorizer: Authorizer) -> User:
    """The impersonated user. Raises ``Forbidden`` for the first part that the caller may not impersonate."""
    name, uid = "", ""
    groups: list[str] = []
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in headers:
        if header == _USER:
            name = name or value
        elif header == _UID:
            uid = uid or value
        elif header == _GROUP:
            groups.append(value)
        elif header.startswith(_EXTRA):
            key = unquote(header[len(_EXTRA) :]).lower()
            extra[key] = (*extra.get(key, ()), value)
    if not name:
        if groups or uid or extra:
            raise BadRequest("requested to impersonate groups, a UID or extra values without impersonating a user name")
        return caller
    wanted = User(name, tuple(groups), uid, extra)
    for permission in _permissions(wanted):
        authorizer.require(caller, permission)
    return User(name, _all_groups(wanted), uid, extra)


def _permissions(wanted: User) -> Iterable[RequestInfo]:
    """The permissions required: one for each impersonated part."""
    account = split_account(wanted.name)
    if account is not None:
        namespace, name = account
        yield _permission("serviceaccounts", name, namespace=namespace)
    else:
        yield _permission("users", wanted.name)
    for group in wanted.groups:
        yield _permission("groups", group)
    for key, values in wanted.extra.items():
        for value in values:
            yield _permission("userextras", value, group=_AUTHENTICATION, subresource=key)
    if wanted.uid:
        yield _permission("uids", wanted.uid, group=_AUTHENTICATION)


def _permission(
    resource: str, name: str, *, group: str = "", namespace: str = "", subresource: str = ""
) -> RequestInfo:
    return RequestInfo("", "impersonate", True, group, "v1", resource, subresource, namespace, name)


def _all_groups(wanted: User) -> tuple[str, ...]:
    groups = wanted.groups
    account = split_account(wanted.name)
    if not groups and account is not None:
        groups = account_groups(account[0])
    if wanted.name == ANONYMOUS.name:
        return groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
    if AUTHENTICATED in groups or UNAUTHENTICATED in groups:
        return groups
    return (*groups, AUTHENTICATED)
