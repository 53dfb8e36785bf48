"""Our rules against recordings of a real kube-apiserver: the same objects stored, the same causes for refusing.

``dev/record-kinds`` makes the recordings from the cases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpool.api.kinds import BUILT_IN
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.admit import compile_admission
from sandpool.api.schema.core import shape_of
from sandpool.api.schema.findings import Undecodable
from sandpool.kube.errors import ApiError, BadRequest, invalid
from sandpool.kube.patches import merge_patch
from sandpool.server.kinds.copy_on_write import keep
from sandpool.server.kinds.differences import differences
from sandpool.server.kinds.metadata import keep_system_fields, validate_metadata
from sandpool.server.kinds.strategies import strategy_for

CASES = Path(__file__).parent / "cases"
TYPES = {(type.api_version, type.kind): type for type in BUILT_IN}
NAMESPACE = "kinds"
CREATED = "2000-01-01T00:00:00Z"
# An object inside a message, printed the way Go prints it.
PRINTED_BY_GO = re.compile(r"[{\[].*[}\]]")


class FakeClusterReader:
    """The other objects of the cluster: those given by a case, and those of every cluster."""

    def __init__(self, given: Iterable[Object]) -> None:
        self.given = [stored_as_given(obj) for obj in given]

    def get(self, group_resource: str, namespace: str | None, name: str) -> Object | None:
        return next((obj for obj in self.objects(group_resource) if obj["metadata"]["name"] == name), None)

    def objects(self, group_resource: str) -> Iterator[Object]:
        for obj in self.given:
            if TYPES[obj["apiVersion"], obj["kind"]].group_resource == group_resource:
                yield obj


def stored_as_given(obj: Object) -> Object:
    type = TYPES[obj["apiVersion"], obj["kind"]]
    return strategy_for(type).default(compile_admission(shape_of(type))(obj).object)


def write(
    type: ResourceType, new: Object, old: Object | None, subresource: str | None, context: FakeClusterReader
) -> Object:
    """Perform one write with the strategies, as the registry does."""
    strategy = strategy_for(type)
    new = compile_admission(shape_of(type))(new, old).object
    if old is None:
        new = strategy.prepare_create(strategy.admit(strategy.default(new), None, context))
        if strategy.spec_generation:
            new = {**new, "metadata": {**new["metadata"], "generation": 1}}
        causes = validate_metadata(new, None, namespaced=type.namespaced, name_format=strategy.name_format)
        causes += strategy.validate(new, None)
    else:
        new = {**new, "metadata": keep_system_fields(new["metadata"], old["metadata"])}
        if subresource == "status":
            new = {**old, "metadata": new["metadata"], "status": new.get("status", {})}
            new = strategy.prepare_status_update(strategy.default(new, old), old)
            causes = validate_metadata(new, old, namespaced=type.namespaced, name_format=strategy.name_format)
            causes += strategy.validate_status(new, old)
        else:
            if "status" in type.subresources:
                new = keep(new, old, "status")
            new = strategy.prepare_update(strategy.admit(strategy.default(new, old), old, context), old)
            causes = validate_metadata(new, old, namespaced=type.namespaced, name_format=strategy.name_format)
            causes += strategy.validate(new, old)
            if strategy.spec_generation and strategy.bumps_generation(new, old):
                generation = old["metadata"]["generation"] + 1
                new = {**new, "metadata": {**new["metadata"], "generation": generation}}
    if causes:
        raise invalid(type, new["metadata"].get("name", ""), causes)
    return new


def shown(causes: Iterable[Object]) -> set[tuple[str | None, str | None, str]]:
    """Causes as they are compared: kube-apiserver repeats some, and describes differences in its own way."""
    return {
        (cause.get("field"), cause.get("reason"), PRINTED_BY_GO.sub("…", cause["message"].split("\n")[0]))
        for cause in causes
    }


def assert_outcome(error: ApiError | None, stored: Object | None, recorded: Object) -> None:
    if stored is not None:
        assert "object" in recorded, f"we accept this, kube-apiserver does not: {recorded}"
        assert not differences(recorded["object"], stored)
        return
    assert error is not None
    assert "object" not in recorded, f"kube-apiserver accepts this, we do not: {error}"
    assert error.code == recorded["code"]
    assert shown(error.details.get("causes", [])) == shown(recorded["causes"])
    if not recorded["causes"]:
        assert error.message == recorded["message"]


def every_case() -> Iterator[Any]:
    for file in sorted(CASES.glob("*.yaml")):
        recordings = json.loads(file.with_suffix(".json").read_text())
        for name, case in yaml.safe_load(file.read_text()).items():
            yield pytest.param(case, recordings[name], id=f"{file.stem}: {name}")


@pytest.mark.parametrize(("case", "recorded"), list(every_case()))
def test_strategies_match_the_recordings_of_kube_apiserver(case: Object, recorded: Object) -> None:
    type = TYPES[case["create"]["apiVersion"], case["create"]["kind"]]
    context = FakeClusterReader(case.get("given", []))
    metadata = {**case["create"]["metadata"], "creationTimestamp": CREATED}
    if type.namespaced:
        metadata["namespace"] = NAMESPACE
    created = {**case["create"], "metadata": metadata}
    stored = attempt(type, created, None, None, context, recorded["created"])
    for patch, expected in zip(case.get("patch", []), recorded.get("patched", []), strict=True):
        assert stored is not None
        new = merge_patch(stored, patch["merge"])
        stored = attempt(type, new, stored, patch.get("subresource"), context, expected) or stored


def attempt(
    type: ResourceType,
    new: Object,
    old: Object | None,
    subresource: str | None,
    context: FakeClusterReader,
    recorded: Object,
) -> Object | None:
    try:
        stored = write(type, new, old, subresource, context)
    except Undecodable:
        # The registry words the refusal.
        assert recorded["code"] == BadRequest.code
        return None
    except ApiError as error:
        assert_outcome(error, None, recorded)
        return None
    assert_outcome(None, stored, recorded)
    return stored


def test_defaulting_is_idempotent() -> None:
    """Defaulting what was stored changes nothing, and says so by identity."""
    for file in sorted(CASES.glob("*.json")):
        for recorded in json.loads(file.read_text()).values():
            for outcome in (recorded["created"], *recorded.get("patched", [])):
                if stored := outcome.get("object"):
                    strategy = strategy_for(TYPES[stored["apiVersion"], stored["kind"]])
                    again = strategy.default(stored)
                    assert again is stored, differences(stored, again)
