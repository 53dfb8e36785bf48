"""The permissions of the router's data plane: it reads sandboxes and pods, and writes nothing."""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import POD, SANDBOX

#: Of the ClusterRole and of its binding.
ROLE_NAME: Final = "sandpool-router"
_READ: Final = ["get", "list", "watch"]
RULES: Final = [{"apiGroups": [kind.group], "resources": [kind.plural], "verbs": _READ} for kind in (SANDBOX, POD)]
