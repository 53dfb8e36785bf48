"""Fixtures and reporting shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis
import pytest

from sandpool.engine.clock import SystemClock
from sandpool.server.serving.pki import Authority
from tests.support import mutation_detector
from tests.support.aggregated_backend import ACCOUNT as AGGREGATED_ACCOUNT
from tests.support.assets import Assets, MissingAssets, find_assets
from tests.support.control_plane import ControlPlane, aggregation_flags
from tests.support.installed_cluster import ACCOUNT
from tests.support.permissions import use_of
from tests.support.users import USERS, WRITERS

# The same examples every time, so that a red run is about the change and not about luck. SANDPOOL_EXPLORE=1 looks for
# new ones. How long an example takes to make or to try says more about the machine than about the code.
_PATIENT: Any = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("repeatable", derandomize=True, **_PATIENT)
hypothesis.settings.register_profile("exploring", print_blob=True, **_PATIENT)
hypothesis.settings.load_profile("exploring" if os.environ.get("SANDPOOL_EXPLORE") == "1" else "repeatable")

pytest_plugins = ["tests.support.backends", "tests.support.permissions_report"]

NO_KUBERNETES = "no real Kubernetes to compare with"
NO_ISOLATION = "real sandboxes are made by root only"


def pytest_configure() -> None:
    """Being told to end is like Ctrl-C: fixtures get to stop the processes they started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    mutation_detector.enable()


@pytest.fixture(scope="session", autouse=True)
def no_local_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither find the home and the context of the developer who runs the tests, nor leave files there."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        patch.delenv("SUDO_UID", raising=False)
        yield


@pytest.fixture(autouse=True)
def no_shared_object_was_changed() -> Iterator[None]:
    """Fail a test in which any code changed an object that it shares with a cache or with the in-process API."""
    yield
    assert not (violations := mutation_detector.verify_all()), "\n".join(violations)


@pytest.fixture
def without_mutation_detector() -> Iterator[None]:
    """Caches as they are in production, for tests that measure memory or time."""
    mutation_detector.disable()
    yield
    mutation_detector.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("isolation"):
                item.add_marker(pytest.mark.skip(reason=NO_ISOLATION))


@pytest.fixture(scope="session")
def kubernetes_assets() -> Assets:
    """The binaries of a real control plane. Missing ones skip the test, unless they are required to be there."""
    try:
        return find_assets()
    except MissingAssets as missing:
        if os.environ.get("SANDPOOL_REQUIRE_KUBERNETES") == "1":
            raise
        pytest.skip(f"{NO_KUBERNETES}: {missing}")


@pytest.fixture(scope="session")
def control_plane(kubernetes_assets: Assets, pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    """A real Kubernetes, one for all tests of a worker."""
    # Without snapshots of its cache the apiserver forgets when etcd does, which tests rely on.
    flags = ["--feature-gates=ListFromCacheSnapshot=false"]
    users = {**USERS, **WRITERS}
    audit = (*WRITERS, ACCOUNT)
    plane = ControlPlane(kubernetes_assets, fsync=False, users=users, audit=audit, apiserver_flags=flags)
    with plane:
        yield plane
        use_of(pytestconfig).note(plane.audit_log)


@pytest.fixture(scope="session")
def aggregating_control_plane(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[ControlPlane]:
    """A real Kubernetes with an aggregation layer and without our CustomResourceDefinitions."""
    flags = aggregation_flags(Authority(tmp_path_factory.mktemp("front-proxy"), SystemClock()))
    users, audit = {**USERS, **WRITERS}, (*WRITERS, AGGREGATED_ACCOUNT)
    with ControlPlane(kubernetes_assets, fsync=False, users=users, audit=audit, apiserver_flags=flags) as plane:
        yield plane
        use_of(pytestconfig, AGGREGATED_ACCOUNT).note(plane.audit_log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report all tests that miss Kubernetes from one place, so that the summary says it in one line with their number:
    a green run is not to be taken for more than it is."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and NO_KUBERNETES in report.longrepr[2]:
        report.longrepr = (__file__, 0, report.longrepr[2])
    return report
