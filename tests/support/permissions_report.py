"""A pytest plugin that compares the permissions of the installed service account with their use in all tests.

Every control plane on which tests run the controllers submits its audit log when it ends (``permissions.use_of``). A
denial by RBAC fails the session. An unused permission fails it too, if the session ran all tests that need a real
Kubernetes (``make test-kubernetes``): a part of them does not use all permissions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandpool.install.roles import controller_rules, lease_rules
from tests.support.installed_cluster import ACCOUNT
from tests.support.permissions import permissions, use_of

# Each worker has seen a part of the requests; the session is judged by their sum.


def pytest_sessionfinish(session: pytest.Session) -> None:
    config, use = session.config, use_of(session.config)
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["permissions"] = [sorted(map(list, use.used)), sorted(use.forbidden)]
    elif any(_findings(config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    used, forbidden = getattr(node, "workeroutput", {}).get("permissions", ((), ()))
    use = use_of(node.config)
    use.used |= {(what, verb) for what, verb in used}
    use.forbidden |= set(forbidden)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    use = use_of(config)
    if use.used:
        for each in _findings(config):
            terminalreporter.write_line(f"PERMISSIONS {ACCOUNT} {each}", red=True)
        granted = _granted()
        terminalreporter.write_line(f"permissions of {ACCOUNT}: {len(granted)} granted, {len(use.used & granted)} used")
        if spare := sorted(f"{verb} {what}" for what, verb in granted - use.used):
            terminalreporter.write_line(f"not used by these tests: {', '.join(spare)}")


def _findings(config: pytest.Config) -> Iterator[str]:
    use = use_of(config)
    if use.used or use.forbidden:
        yield from use.findings(_granted(), complete=_is_complete(config))


def _granted() -> set[tuple[str, str]]:
    """What the tests can use: their pods are on no kubelet, so no port can be forwarded."""
    granted = permissions([*controller_rules(), *lease_rules()])
    return {(what, verb) for what, verb in granted if what != "pods/portforward"}


def _is_complete(config: pytest.Config) -> bool:
    everything = config.args == config.getini("testpaths") and not config.option.keyword
    return everything and os.environ.get("SANDPOOL_REQUIRE_KUBERNETES") == "1"
