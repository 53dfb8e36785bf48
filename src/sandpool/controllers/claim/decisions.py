"""What can be done about a claim, one thing at a time, and what the choice is based on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sandpool.api.events import Happening
from sandpool.api.views import ClaimView, SandboxView, TemplateView, WarmPoolView
from sandpool.controllers.claim.assignment.wait_queue import SandboxRequest
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.metrics import Sample
from sandpool.controllers.options import DEFAULT_LABEL_DOMAINS
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.writer import Create, Delete, Patch


@dataclass(frozen=True, slots=True)
class Observed:
    """A claim and what is around it."""

    claim: ClaimView
    owned: Sequence[SandboxView]  # whose controller is the claim
    named: Mapping[str, SandboxView]  # those of ``references.names_to_find`` that exist
    pool: WarmPoolView | None
    template: TemplateView | None
    revision: TemplateRevision | None  # of the template, None if that is
    now: datetime
    first_observed: datetime | None = None
    trace_context: str = ""
    # Whether the claim is to carry the two above; how long it took is measured in any case.
    annotate_observability: bool = True
    label_domains: Sequence[str] = DEFAULT_LABEL_DOMAINS


@dataclass(frozen=True, slots=True)
class NoOp:
    """Nothing: the claim is being deleted, and the garbage collector sees to its sandbox."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The claim has expired; say so and look again at once."""


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """Delete the claim; ``foreground``: only after its sandbox."""

    delete: Delete
    foreground: bool
    event: Happening


@dataclass(frozen=True, slots=True)
class DeleteSandboxes:
    """Delete the sandboxes of a claim that has expired and stays. ``sandbox`` is one that is still there."""

    deletes: tuple[Delete, ...]
    sandbox: SandboxView | None


@dataclass(frozen=True, slots=True)
class Sync:
    """The claim has its sandbox, to be patched if there is a ``patch``. It should not have the ``duplicates``."""

    sandbox: SandboxView
    patch: Patch | None
    error: ClaimError | None = None
    duplicates: tuple[SandboxView, ...] = ()


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make a sandbox the claim's. A conflict is for ``conflict`` to judge."""

    sandbox: SandboxView
    patch: Patch
    event: Happening
    sample: Sample


@dataclass(frozen=True, slots=True)
class RequestWarm:
    """Ask the assigner for the wishes in turn. If it has nothing for any but it is worth waiting, wait with the last
    one, for ``grace`` at most; then take also a sandbox that is still booting, and make one if there is none."""

    requests: tuple[SandboxRequest, ...]
    grace: float
    is_reference_stale: bool


@dataclass(frozen=True, slots=True)
class CreateCold:
    """Create a sandbox for the claim. One that exists already is ``problems.create_pending``."""

    create: Create
    event: Happening
    sample: Sample
    is_reference_stale: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """The claim cannot be served or, if it has expired, not be rid of what it names."""

    error: ClaimError
    has_expired: bool = False


Decision = NoOp | Expire | DeleteClaim | DeleteSandboxes | Sync | Adopt | RequestWarm | CreateCold | Reject
