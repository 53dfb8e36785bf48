"""The groups with a meaning to the server."""

from __future__ import annotations

from dataclasses import replace

from sandpool.server.request.messages import User

MASTERS = "system:masters"  # bypasses RBAC
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = User("system:anonymous", (UNAUTHENTICATED,))


def authenticated(user: User) -> User:
    """Add the user to the group of all authenticated users."""
    if AUTHENTICATED in user.groups:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED))
