from __future__ import annotations

from sandpool.api.kinds import BUILT_IN, CONFIG_MAP, CORE_EVENT, EVENT, POD
from sandpool.api.resource import Object
from sandpool.api.schema.shape import Shape
from sandpool.server.builtin import SERVED_SUBRESOURCES, built_in_resources
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.resources import Resource, ResourceTable
from tests.support.api_objects import custom_type

WIDGET, NEXT_WIDGET = custom_type("example.com"), custom_type("example.com", version="v2")


def as_it_is(obj: Object) -> Object:
    return obj


def resource(type: object = WIDGET, **more: object) -> Resource:
    return Resource(type, Shape, KindStrategy(), **more)  # type: ignore[arg-type]


def test_every_built_in_kind_is_served_once() -> None:
    table = ResourceTable()
    for each in built_in_resources():
        table.add(each)
    assert len(table) == len(BUILT_IN)
    pods = table.get("", "v1", "pods")
    assert pods is not None
    assert pods.type.kind == "Pod"
    assert table.get("", "v2", "pods") is None
    assert table.get("apps", "v1", "pods") is None


def test_unsupported_subresources_are_not_listed() -> None:
    for each in built_in_resources():
        assert each.type.subresources <= SERVED_SUBRESOURCES
    assert (
        "proxy" not in next(each for each in built_in_resources() if each.type.plural == POD.plural).type.subresources
    )


def test_both_event_groups_share_one_resource_store() -> None:
    events = [each for each in built_in_resources() if each.type in (EVENT, CORE_EVENT)]
    assert {each.storage for each in events} == {"events"}
    assert [each.type for each in events if each.from_stored is None] == [CORE_EVENT]


def test_resource_store_is_known_by_its_storage_version() -> None:
    table = ResourceTable()
    shown = resource(NEXT_WIDGET, to_stored=as_it_is, from_stored=as_it_is)
    stored = resource(WIDGET)
    for order in ([shown, stored], [stored, shown]):
        table.replace(WIDGET.group_resource, order)
        assert table.stored() == {WIDGET.group_resource: stored}


def test_replace_removes_unserved_versions() -> None:
    table = ResourceTable()
    table.add(resource(CONFIG_MAP))
    table.replace(WIDGET.group_resource, [resource(WIDGET), resource(NEXT_WIDGET)])
    before = table.generation
    table.replace(WIDGET.group_resource, [resource(NEXT_WIDGET)])
    assert table.generation > before
    assert table.get("example.com", "v1", "widgets") is None
    assert table.get("example.com", "v2", "widgets") is not None
    table.replace(WIDGET.group_resource, [])
    assert [each.type for each in table] == [CONFIG_MAP]


def test_reviews_have_no_resource_store() -> None:
    table = ResourceTable()
    for each in built_in_resources():
        table.add(each)
    assert "tokenreviews.authentication.k8s.io" not in table.stored()


def test_schema_of_a_custom_resource_includes_the_object_metadata() -> None:
    widgets = resource(custom=True)
    assert {"apiVersion", "kind", "metadata"} <= set(widgets.typed.properties)
    assert "metadata" not in widgets.shape.properties
    config_maps = next(each for each in built_in_resources() if each.type == CONFIG_MAP)
    assert config_maps.typed is config_maps.shape


def test_only_custom_resources_are_defaulted_on_read() -> None:
    assert resource(custom=True).fill is not None
    assert resource(CONFIG_MAP).fill is None
