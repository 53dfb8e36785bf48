"""Changes of templates, and their undo."""

from __future__ import annotations

import orjson
import pytest

from sandpool.api.kinds import SANDBOX_TEMPLATE
from sandpool.api.labels import PREVIOUS_REVISION
from sandpool.kube.errors import Conflict
from sandpool.service.service import Service
from sandpool.service.templates import NewTemplate, NothingToUndo, TemplateChange, previous_revision
from sandpool.testing.world import World


async def make(service: Service, **fields: str) -> None:
    await service.templates.create(NewTemplate("example.com/image:1", env={"A": "1"}, **fields).document("python"))  # type: ignore[arg-type]


async def test_a_change_replaces_what_it_names_and_keeps_the_rest(service: Service) -> None:
    await make(service, cpu="2", memory="1Gi", runtime="runc")
    changed = await service.templates.change("python", TemplateChange(image="example.com/image:2", memory="2Gi"))
    assert (changed.image, changed.cpu, changed.memory, changed.runtime) == ("example.com/image:2", "2", "2Gi", "runc")
    (container,) = changed.object["spec"]["podTemplate"]["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "1"}]


async def test_limits_are_added_and_removed(service: Service) -> None:
    await make(service, cpu="2")
    changed = await service.templates.change("python", TemplateChange(cpu="", memory="1Gi"))
    assert (changed.cpu, changed.memory) == ("", "1Gi")


async def test_undo_returns_to_the_spec_before_and_back(service: Service) -> None:
    await make(service, cpu="2")
    first = (await service.templates.get("python")).object["spec"]
    second = (await service.templates.change("python", TemplateChange(image="example.com/image:2", cpu=""))).object[
        "spec"
    ]
    assert (await service.templates.undo("python")).object["spec"] == first
    assert (await service.templates.undo("python")).object["spec"] == second


async def test_a_change_that_changes_nothing_does_not_forget_the_former_spec(service: Service) -> None:
    await make(service)
    await service.templates.change("python", TemplateChange(image="example.com/image:2"))
    await service.templates.change("python", TemplateChange(image="example.com/image:2"))
    assert (await service.templates.undo("python")).image == "example.com/image:1"


async def test_a_template_that_was_never_changed_has_nothing_to_undo(service: Service) -> None:
    await make(service)
    with pytest.raises(NothingToUndo, match="no former revision"):
        await service.templates.undo("python")


async def test_a_change_between_reading_and_writing_is_a_conflict(service: Service, world: World) -> None:
    await make(service)
    old = (await service.templates.get("python")).object
    await world.change_template("example.com/image:9")
    with pytest.raises(Conflict):
        await service.templates._replace(old, TemplateChange(image="example.com/image:2").applied(old["spec"]))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"podTemplate": {"spec": {"containers": []}}}', '"x"', "null"])
async def test_an_annotation_that_is_no_spec_is_ignored(service: Service, world: World, text: str) -> None:
    await make(service)
    await world.patch(SANDBOX_TEMPLATE, "python", {"metadata": {"annotations": {PREVIOUS_REVISION: text}}})
    assert previous_revision(await world.get(SANDBOX_TEMPLATE, "python")) is None


async def test_the_former_spec_is_json(service: Service) -> None:
    await make(service)
    changed = await service.templates.change("python", TemplateChange(image="example.com/image:2"))
    kept = orjson.loads(changed.object["metadata"]["annotations"][PREVIOUS_REVISION])
    assert kept["podTemplate"]["spec"]["containers"][0]["image"] == "example.com/image:1"
