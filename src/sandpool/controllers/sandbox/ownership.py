"""Which existing objects a sandbox may use: its own, and unowned ones that were prepared for it.

Only a label distinguishes an object prepared for a sandbox from one that happens to have the right name. Without that
label a client that guesses a name could make a sandbox run, route to or mount an object of its own.
"""

from __future__ import annotations

from sandpool.api import labels
from sandpool.api.names import name_hash
from sandpool.api.views import SandboxView, View


def tracking_labels(sandbox: SandboxView) -> dict[str, str]:
    """The label by which the children of a sandbox are found."""
    return {labels.SANDBOX_NAME_HASH: name_hash(sandbox.name)}


def precondition(child: View) -> dict[str, str]:
    """Metadata that a patch of an existing object must carry. Owner references are written as a whole list, so adopting
    an unowned object requires the version that was unowned: two sandboxes may have been promised the same one."""
    return {"resourceVersion": child.resource_version} if child.owner is None else {}


def refusal(what: str, child: View, sandbox: SandboxView) -> str:
    """The reason why the sandbox may not use an existing object; empty if it may."""
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
