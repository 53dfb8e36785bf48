"""Who there is in the APIs that tests run on."""

from __future__ import annotations

from collections.abc import Mapping

ADMIN = "admin"
# The others, with their groups. They have no rights but those of everybody until a test grants some.
USERS: Mapping[str, tuple[str, ...]] = {"alice": ("developers",), "bob": ()}
# Who lives in a home (``home``). Each has a name of its own, by which audit logs tell them apart. People and the node
# may do everything, the controllers what the installed role grants them.
WRITERS: Mapping[str, tuple[str, ...]] = {"people": ("system:masters",), "controllers": (), "node": ("system:masters",)}


def token_file(tokens: Mapping[str, str], users: Mapping[str, tuple[str, ...]]) -> str:
    """The file both kube-apiserver and ``sandpool server`` read: token, user, uid and groups on a line."""
    return "".join(f'{tokens[user]},{user},{user}-uid,"{",".join(groups)}"\n' for user, groups in users.items())
