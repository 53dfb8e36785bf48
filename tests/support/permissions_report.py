"""A pytest plugin: what the installed service account was allowed to do, compared with what it did, over all tests.

Every control plane that tests run the controllers on hands in its audit log when it ends (``permissions.use_of``). To
be refused by RBAC fails the session. So does a permission that nobody has ever used, if the session was all tests
that need a real Kubernetes (``make test-kubernetes``): a part of them has no use for some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sandpool.install.roles import controller_rules, lease_rules
from tests.support.installed_cluster import ACCOUNT
from tests.support.permissions import permissions, use_of

# With several workers each has seen a part, and the session is judged by all of them together.


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
    return permissions([*controller_rules(), *lease_rules()])


def _is_complete(config: pytest.Config) -> bool:
    everything = config.args == config.getini("testpaths") and not config.option.keyword
    return everything and os.environ.get("SANDPOOL_REQUIRE_KUBERNETES") == "1"
