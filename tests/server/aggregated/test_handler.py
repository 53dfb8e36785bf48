"""Order of the checks before a verb."""

from __future__ import annotations

import pytest

from sandpool.kube.errors import Forbidden, ServiceUnavailable
from sandpool.kube.transport import APPLY_PATCH
from sandpool.server.aggregated.handler import ForwardedHandler
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.request_info import RequestInfo

CLAIMS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/ns/sandboxclaims"


class Checks:
    """The three neighbours of the handler, and what they were asked in which order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allowed = self.leading = True
        self.forbidden = ""  # a verb
        self.served: ServerRequest | None = None

    async def require(self, user: User, info: RequestInfo) -> None:
        self.asked.append(f"may {user.name} {info.verb}")
        if not self.allowed or info.verb == self.forbidden:
            raise Forbidden(f"no {info.verb}")

    async def ensure(self, name: str) -> None:
        self.asked.append(f"namespace {name}")

    async def handle(self, request: ServerRequest) -> Response:
        self.asked.append("served")
        self.served = request
        return Response()

    def leads(self) -> bool:
        return self.leading


@pytest.fixture
def checks() -> Checks:
    return Checks()


async def send(checks: Checks, method: str, path: str = CLAIMS, content_type: str | None = None) -> list[str]:
    handler = ForwardedHandler(checks, checks, checks, checks.leads)  # type: ignore[arg-type]
    headers = {} if content_type is None else {"content-type": content_type}
    await handler.handle(ServerRequest(method, path, User("alice"), headers=headers))
    return checks.asked


@pytest.mark.parametrize(
    ("method", "path", "asked"),
    [
        ("GET", CLAIMS, ["may alice list", "served"]),
        ("POST", CLAIMS, ["may alice create", "namespace ns", "served"]),
        ("PATCH", f"{CLAIMS}/a", ["may alice patch", "namespace ns", "served"]),
        ("DELETE", f"{CLAIMS}/a", ["may alice delete", "served"]),
        ("GET", "/apis", ["may alice get", "served"]),
    ],
)
async def test_request_is_authorized_then_served(checks: Checks, method: str, path: str, asked: list[str]) -> None:
    assert await send(checks, method, path) == asked


@pytest.mark.parametrize("forbidden", ["", "create"])
async def test_apply_is_authorized_to_create_too(checks: Checks, forbidden: str) -> None:
    """The verb decides whether there is anything to create."""
    checks.forbidden = forbidden
    asked = await send(checks, "PATCH", f"{CLAIMS}/a", f"{APPLY_PATCH}; charset=utf-8")
    assert asked == ["may alice patch", "may alice create", "namespace ns", "served"]
    assert checks.served is not None
    refusal = checks.served.create_refusal
    assert (refusal is not None) is bool(forbidden)


async def test_refused_request_reads_nothing_else(checks: Checks) -> None:
    checks.allowed = checks.leading = False
    with pytest.raises(Forbidden):
        await send(checks, "POST")
    assert checks.asked == ["may alice create"]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_process_without_the_lease_writes_nothing(checks: Checks, method: str) -> None:
    checks.leading = False
    with pytest.raises(ServiceUnavailable, match="leader lease") as refusal:
        await send(checks, method)
    assert refusal.value.retry_after == 1
    assert "served" not in checks.asked


async def test_process_without_the_lease_still_reads(checks: Checks) -> None:
    checks.leading = False
    assert await send(checks, "GET") == ["may alice list", "served"]
