"""Which objects a sandbox may use: its own, and those of nobody that were meant for it.

The label that says so is the only thing that tells an object prepared for a sandbox from one that happens to bear the
right name. Without it anybody who can guess a name could have a sandbox run, route to or mount something of theirs.
"""

from __future__ import annotations

from sandpool.api import labels
from sandpool.api.names import name_hash
from sandpool.api.views import SandboxView, View


def tracking_labels(sandbox: SandboxView) -> dict[str, str]:
    """The label by which the children of a sandbox are found."""
    return {labels.SANDBOX_NAME_HASH: name_hash(sandbox.name)}


def precondition(child: View) -> dict[str, str]:
    """What a patch of an existing object must say besides. Its owners are written as a whole list, so who takes over an
    object of nobody does that for the version that was nobody's: two sandboxes may have been promised the same one."""
    return {"resourceVersion": child.resource_version} if child.owner is None else {}


def refusal(what: str, child: View, sandbox: SandboxView) -> str:
    """Why the sandbox may not use an existing object; empty if it may."""
    owner = child.owner
    if owner is not None:
        if owner.uid == sandbox.uid:
            return ""
        return (
            f'{what} "{child.name}" is owned by {owner.kind}/{owner.name} (UID: {owner.uid}), '
            f'not by sandbox "{sandbox.name}"'
        )
    tracked = child.labels.get(labels.SANDBOX_NAME_HASH) == name_hash(sandbox.name)
    if tracked or child.labels.get(labels.ADOPTABLE) == "true":
        return ""
    return (
        f'cannot adopt unowned {what} "{child.name}" for sandbox "{sandbox.name}": '
        f'it has no label {labels.ADOPTABLE}="true"'
    )
