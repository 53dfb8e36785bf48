"""The SDK with the address of the router: the mode to recommend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sandpool.testing.private_home import PrivateHome
from sandpool.testing.sdk import scripts
from sandpool.testing.sdk.speaker import SdkProcess, Speaker

pytestmark = pytest.mark.isolation


@pytest.fixture(scope="module")
def speak(home: PrivateHome, either: SdkProcess) -> Speaker:
    config = {"class": "SandboxDirectConnectionConfig", "api_url": home.router}
    return Speaker(either, config)


@pytest.mark.parametrize("script", scripts.EVERYWHERE, ids=lambda script: script.__name__)
def test_what_works_everywhere(speak: Speaker, script: Callable[..., Any]) -> None:
    speak(script)


def test_a_hundred_megabytes(speak: Speaker) -> None:
    speak(scripts.streams, 100)
