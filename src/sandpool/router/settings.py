"""Settings of the data plane that its parent sends it: limits, and which clients may use it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sandpool.engine.clock import Clock
from sandpool.router.authorization import Authorizer, ScopedTokenAuthorizer, allow_all
from sandpool.router.peer_owner import LoopbackOwner, SocketTable
from sandpool.router.router import RouterOptions, TrustCheck, trust_none
from sandpool.router.tokens import TokenSigner


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """``token_secret`` signs the tokens of clients; None: all clients may reach all sandboxes. Loopback connections of
    the users ``trusted_uids`` need no token."""

    options: RouterOptions = field(default_factory=RouterOptions)
    token_secret: bytes | None = None
    trusted_uids: frozenset[int] = frozenset()

    def authorizer(self, clock: Clock) -> Authorizer:
        return allow_all if self.token_secret is None else ScopedTokenAuthorizer(TokenSigner(self.token_secret), clock)

    def trusts(self) -> TrustCheck:
        """Return the check of connections. Opens the kernel's socket table, and trusts none where there is none."""
        if not self.trusted_uids:
            return trust_none
        try:
            return LoopbackOwner(self.trusted_uids, SocketTable())
        except OSError:
            return trust_none

    def to_json(self) -> dict[str, Any]:
        return {
            "options": {**asdict(self.options), "allowed_hosts": sorted(self.options.allowed_hosts)},
            "token_secret": None if self.token_secret is None else self.token_secret.hex(),
            "trusted_uids": sorted(self.trusted_uids),
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> RouterSettings:
        options, secret = given["options"], given["token_secret"]
        return cls(
            RouterOptions(**{**options, "allowed_hosts": frozenset(options["allowed_hosts"])}),
            None if secret is None else bytes.fromhex(secret),
            frozenset(given["trusted_uids"]),
        )
