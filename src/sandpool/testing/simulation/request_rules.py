"""Rules for the requests of a controller process, judged by the state of its caches when it sends them.

* **Current revision only.** Under the strategy Recreate no claim adopts a sandbox of another revision than the template
  in the process's cache. A later change of the template does not count.
* **No hot loops.** No controller writes more than ``PER_SECOND`` times per second for one object, whatever the API and
  the watches do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import Key
from sandpool.api.warmpool import RECREATE
from sandpool.controllers.manager import ControllerManager
from sandpool.kube.transport import Request
from sandpool.testing.simulation.invariants import Violation

PER_SECOND = 60


class RequestRules:
    def __init__(self, controllers: ControllerManager, time: Callable[[], float]) -> None:
        self.controllers = controllers
        self.time = time
        self._second = -1
        self._writes: Counter[str] = Counter()  # in this second, by controller and object

    def check(self, writer: str, request: Request) -> None:
        second = int(self.time())
        if second != self._second:
            self._second = second
            self._writes.clear()
        self._writes[writer] += 1
        if self._writes[writer] > PER_SECOND and " " in writer:
            raise Violation("no hot loops", f"{writer} writes more than {PER_SECOND} times per second")
        if request.method == "PATCH" and f"/{SANDBOX.plural}/" in request.path:
            self._check_adoption(request)

    def _check_adoption(self, request: Request) -> None:
        owners = (request.body.get("metadata") or {}).get("ownerReferences") or []
        if not owners or owners[0]["kind"] != SANDBOX_CLAIM.kind:
            return
        caches = self.controllers.caches
        parts = request.path.split("/")
        namespace, name = parts[parts.index("namespaces") + 1], parts[-1]
        sandbox = caches.sandboxes.get(Key(namespace, name))
        pool = None
        if sandbox is not None and sandbox.owner is not None:
            pool = caches.pools.get(Key(namespace, sandbox.owner.name))
        if sandbox is None or pool is None or pool.strategy != RECREATE:
            return
        template = caches.templates.get(Key(namespace, pool.template))
        if template is None:
            return
        has, wants = (each.pod_template["spec"]["containers"][0]["image"] for each in (sandbox, template))
        if has != wants:
            raise Violation(
                "current revision only", f"{owners[0]['name']} adopts {name} with {has}, the template has {wants}"
            )
