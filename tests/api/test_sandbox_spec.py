"""What Sandbox and SandboxTemplate share."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.sandbox_spec import unmounted_volumes


def pod(*containers: Any, **spec: Any) -> Any:
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]
    return {"spec": {"containers": list(containers), "volumes": volumes, **spec}}


def test_volumes_and_claim_templates_that_no_container_mounts_are_named_once() -> None:
    claims = [{"metadata": {"name": "b"}}, {"metadata": {"name": "c"}}, {"metadata": {"name": "d"}}]
    main = {"name": "main", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}
    assert unmounted_volumes(pod(main), ()) == ("b",)
    assert unmounted_volumes(pod(main), claims) == ("b", "c", "d")
    block = {"name": "block", "volumeDevices": [{"name": "d", "devicePath": "/dev/d"}]}
    init = {"name": "init", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}
    assert unmounted_volumes(pod(main, block, initContainers=[init]), claims) == ("b",)
    assert unmounted_volumes({}, ()) == ()


@pytest.mark.parametrize("mounts", [None, "a", ["a"], [None], {"name": "a"}])
def test_mounts_that_the_schema_does_not_check_mount_nothing(mounts: Any) -> None:
    """The profile "lean" accepts them, and the API refuses the pod."""
    assert unmounted_volumes(pod({"name": "main", "volumeMounts": mounts}), ()) == ("a", "b")
