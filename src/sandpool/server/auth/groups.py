"""The groups that mean something to the server itself."""

from __future__ import annotations

from dataclasses import replace

from sandpool.server.request.messages import User

MASTERS = "system:masters"  # may do everything, whatever the RBAC objects say
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


def authenticated(user: User) -> User:
    """The user as a member of the group of all who have shown credentials."""
    if AUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))
