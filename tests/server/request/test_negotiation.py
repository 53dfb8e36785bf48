from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandpool.kube.errors import NotAcceptable
from sandpool.kube.transport import JSON
from sandpool.server.request.negotiation import DISCOVERY_FORMS, OBJECT_FORMS, YAML, Negotiated, negotiate

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
KUBECTL_GET = f"{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
KUBECTL_DISCOVERY = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
PARTIAL = "as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
AS_TABLE = Negotiated(as_="Table", group="meta.k8s.io", version="v1")


# What a kube-apiserver 1.36.3 chose for the same header on a ConfigMap, except that its protobuf is our JSON.
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Negotiated()),
        ("application/json", Negotiated()),
        ("*/*", Negotiated()),
        ("*", Negotiated()),
        ("application/*", Negotiated()),
        ("application/yaml", Negotiated(YAML)),
        ("application/vnd.kubernetes.protobuf", Negotiated()),
        ("application/vnd.kubernetes.protobuf,application/json", Negotiated()),
        (KUBECTL_GET, AS_TABLE),
        (TABLE, AS_TABLE),
        ("application/json ; as=Table ;v=v1;g=meta.k8s.io", AS_TABLE),
        ("*/*;as=Table;v=v1;g=meta.k8s.io", AS_TABLE),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Negotiated(JSON, "Table", "meta.k8s.io", "v1beta1")),
        ("application/yaml;as=Table;v=v1;g=meta.k8s.io", Negotiated(YAML, "Table", "meta.k8s.io", "v1")),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Negotiated()),
        (f"application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,{TABLE}", AS_TABLE),
        (
            f"application/vnd.kubernetes.protobuf;{PARTIAL},application/json;{PARTIAL},application/json",
            Negotiated(as_="PartialObjectMetadata", group="meta.k8s.io", version="v1"),
        ),
        (f"{TABLE};q=0.1,application/json", Negotiated()),
        ("application/json;q=0.5,application/yaml", Negotiated(YAML)),
        ("application/json;q=0", Negotiated()),
        ("*/*,application/yaml", Negotiated(YAML)),
        ("text/html,application/json;q=0.1", Negotiated()),
        ("application/json;stream=watch", Negotiated()),
        ("application/json;unknown=x", Negotiated()),
        ("application/json;pretty=1", Negotiated(pretty=True)),
    ],
)
def test_first_servable_alternative_is_chosen(header: str, expected: Negotiated) -> None:
    assert negotiate(header) == expected


@pytest.mark.parametrize(
    "header",
    [
        "text/html",
        "garbage",
        "Application/JSON",
        "application/cbor",
        "application/json/x",
        "application/json;as=Table",
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/json;as=Nope;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
        "application/json;stream=other",
    ],
)
def test_unservable_header_is_rejected_with_the_media_types(header: str) -> None:
    with pytest.raises(NotAcceptable) as refused:
        negotiate(header)
    assert refused.value.status()["message"] == (
        "only the following media types are accepted: "
        "application/json, application/yaml, application/vnd.kubernetes.protobuf"
    )


def test_custom_resources_have_no_protobuf_form() -> None:
    with pytest.raises(NotAcceptable):
        negotiate("application/vnd.kubernetes.protobuf", custom=True)
    assert negotiate("application/vnd.kubernetes.protobuf,application/json", custom=True) == Negotiated()
    assert negotiate(f"application/vnd.kubernetes.protobuf;{PARTIAL}", custom=True).as_ == "PartialObjectMetadata"


def test_watch_cannot_be_yaml() -> None:
    with pytest.raises(NotAcceptable, match=r"application/json;stream=watch, application/vnd\.kubernetes\.protobuf"):
        negotiate("application/json;q=0.5,application/yaml", stream=True)
    assert negotiate(KUBECTL_GET, stream=True) == AS_TABLE


def test_discovery_has_the_requested_version() -> None:
    new = negotiate(KUBECTL_DISCOVERY, forms=DISCOVERY_FORMS)
    assert (new.api_version, new.as_) == ("apidiscovery.k8s.io/v2", "APIGroupDiscoveryList")
    assert new.content_type == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    old = negotiate(KUBECTL_DISCOVERY.split(",", 1)[1], forms=DISCOVERY_FORMS)
    assert old.api_version == "apidiscovery.k8s.io/v2beta1"
    assert negotiate(KUBECTL_DISCOVERY, forms=frozenset()) == Negotiated()


def test_content_type_of_a_table_does_not_name_it() -> None:
    assert negotiate(TABLE).content_type == "application/json"


@settings(deadline=None)
@given(st.text(alphabet="*/;,=. qasvgTbleJSONjson0123456789", max_size=80))
def test_any_header_is_served_or_rejected(header: str) -> None:
    try:
        chosen = negotiate(header)
    except NotAcceptable:
        return
    assert chosen.media_type in (JSON, YAML)
    assert not chosen.as_ or (chosen.group, chosen.version, chosen.as_) in OBJECT_FORMS
