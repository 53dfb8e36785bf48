"""One running home with real sandboxes for all tests of the everyday commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.playground import Playground, playground


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    with playground(tmp_path_factory.mktemp("playground")) as running:
        yield running
