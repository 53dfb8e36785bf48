"""A pytest plugin that compares the permissions of the installed service accounts with their use in all tests.

Every control plane on which tests run the controllers submits its audit log when it ends (``permissions.use_of``). A
denial by RBAC fails the session. An unused permission fails it too, if the session ran all tests that need a real
Kubernetes (``make test-kubernetes``): a part of them does not use all permissions.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from sandpool.api.kinds import CLUSTER_ROLE, ROLE, SANDPOOL
from sandpool.install import apiserver
from sandpool.install.roles import controller_rules, lease_rules
from tests.support.installed_cluster import ACCOUNT
from tests.support.permissions import Use, permissions, use_of, uses

GROUPS = {type.group for type in SANDPOOL}

# Each worker has seen a part of the requests; the session is judged by their sum.


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["permissions"] = {
            account: [sorted(map(list, use.used)), sorted(use.forbidden)] for account, use in uses(config).items()
        }
    elif any(_findings(config, use) for use in uses(config).values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for account, (used, forbidden) in getattr(node, "workeroutput", {}).get("permissions", {}).items():
        use = use_of(node.config, account)
        use.used |= {(what, verb) for what, verb in used}
        use.forbidden |= set(forbidden)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for account, use in sorted(uses(config).items()):
        for each in _findings(config, use):
            terminalreporter.write_line(f"PERMISSIONS {account} {each}", red=True)
        given = granted(account)
        terminalreporter.write_line(f"permissions of {account}: {len(given)} granted, {len(use.used & given)} used")
        if spare := sorted(f"{verb} {what}" for what, verb in given - use.used):
            terminalreporter.write_line(f"not used by these tests: {', '.join(spare)}")


def _findings(config: pytest.Config, use: Use) -> list[str]:
    return use.findings(granted(use.account), complete=_is_complete(config))


def granted(account: str) -> set[tuple[str, str]]:
    """What an account may do and all tests can use: only those that run as root have pods on a kubelet, to which ports
    can be forwarded.

    The aggregated API server serves our kinds itself. The controllers in it have the permissions of the others on them,
    because their check before the start asks for all, and a move reads custom resources."""
    if account == ACCOUNT:
        rules = [*controller_rules(), *lease_rules()]
    else:
        roles = [each for each in apiserver.permissions() if each["kind"] in (CLUSTER_ROLE.kind, ROLE.kind)]
        rules = [rule for each in roles for rule in each["rules"] if not GROUPS & set(rule["apiGroups"])]
    return {(what, verb) for what, verb in permissions(rules) if what != "pods/portforward"}


def _is_complete(config: pytest.Config) -> bool:
    everything = config.args == config.getini("testpaths") and not config.option.keyword
    return everything and os.environ.get("SANDPOOL_REQUIRE_KUBERNETES") == "1"
