"""Which members are no longer what their template describes."""

from __future__ import annotations

from sandpool.api.labels import TEMPLATE_HASH, TEMPLATE_REF_HASH
from sandpool.api.views import SandboxView
from sandpool.controllers.revision import TemplateRevision


class Staleness:
    """Compares sandboxes with one blueprint, each former blueprint once.

    An own member carries the hash of what it was made from, and we wrote it. Equal hashes mean the same; different ones
    mean nothing yet, because a label of the pod template changes the hash and is no reason to replace anybody. So they
    are compared by meaning, and the members that carry the same former hash need no comparison of their own.
    """

    def __init__(self, revision: TemplateRevision) -> None:
        self.revision = revision
        self._verdicts: dict[str, bool] = {revision.hash: False}  # by the hash a sandbox was made from

    def is_stale(self, sandbox: SandboxView) -> bool:
        """Whether a member should be replaced."""
        if self._of_another_template(sandbox):
            return True
        made_from = sandbox.labels.get(TEMPLATE_HASH, "")
        if not made_from:
            return not self.revision.matches(sandbox)
        verdict = self._verdicts.get(made_from)
        if verdict is None:
            verdict = self._verdicts[made_from] = not self.revision.matches(sandbox)
        return verdict

    def is_foreign(self, orphan: SandboxView) -> bool:
        """Whether an orphan is not what the template would make. Anybody may have written its labels, so its hash is
        not believed."""
        return self._of_another_template(orphan) or not self.revision.matches(orphan)

    def _of_another_template(self, sandbox: SandboxView) -> bool:
        return sandbox.labels.get(TEMPLATE_REF_HASH) != self.revision.ref_hash
