"""Compares the permissions of a service account with its requests in audit logs of kube-apiserver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from sandpool.api.resource import Object
from tests.support.installed_cluster import ACCOUNT

# Reviews that every user may create; no role of ours grants them.
_OF_ALL_USERS: Final = ("selfsubjectaccessreviews", "create")


@dataclass
class Use:
    """The permissions that ``account``, the user name in audit logs, used: resources with subresources, and verbs."""

    account: str = ACCOUNT
    used: set[tuple[str, str]] = field(default_factory=set)
    forbidden: set[str] = field(default_factory=set)  # in the words of the API

    def note(self, log: Path, *, refusals: bool = True) -> None:
        """Read an audit log of kube-apiserver. Without ``refusals`` denied requests are ignored: an API server that has
        just started does not know its roles yet and denies everything for a moment."""
        with log.open("rb") as lines:
            for line in lines:
                entry = orjson.loads(line)
                if entry["user"]["username"] == self.account and "objectRef" in entry:
                    self._note(entry, refusals)

    def _note(self, entry: Any, refusals: bool) -> None:
        about = entry["objectRef"]
        what = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        if entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
            if refusals:
                self.forbidden.add(f"{entry['verb']} {what}")
        elif (what, entry["verb"]) != _OF_ALL_USERS:
            self.used.add((what, entry["verb"]))

    def findings(self, granted: set[tuple[str, str]], *, complete: bool) -> list[str]:
        """Return the differences to the granted permissions. Unused permissions are reported only if the run was
        ``complete``."""
        found = [f"forbidden: {each}" for each in sorted(self.forbidden)]
        if complete:
            found += [f"granted and never used: {verb} {what}" for what, verb in sorted(granted - self.used)]
        return found


def permissions(rules: Iterable[Object]) -> set[tuple[str, str]]:
    return {(what, verb) for rule in rules for what in rule["resources"] for verb in rule["verbs"]}


_USES: Final = pytest.StashKey[dict[str, Use]]()


def uses(config: pytest.Config) -> dict[str, Use]:
    """Return the permissions that were used in this pytest session, by account."""
    return config.stash.setdefault(_USES, {})


def use_of(config: pytest.Config, account: str = ACCOUNT) -> Use:
    """Return the permissions that an account, by default that of the controllers, used in this pytest session."""
    return uses(config).setdefault(account, Use(account))
