"""Content negotiation: reads the Accept header the way kube-apiserver does.

Clients list alternatives in order of preference, e.g. kubectl get::

    application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json

The parameters ``as``, ``g`` and ``v`` request a conversion of the objects to another kind. Alternatives that the
endpoint cannot produce are skipped, so an older server falls through to plain objects instead of failing.

The server never writes protobuf but accepts a request for it: a client that decodes protobuf picks its decoder by the
Content-Type of the response, and all such clients decode JSON as well. Custom resources have no protobuf form, so the
server refuses a request for one, as kube-apiserver does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sandpool.kube.errors import NotAcceptable
from sandpool.kube.transport import JSON

YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"

# (group, version, kind) that a response can be converted to.
Form = tuple[str, str, str]

_META = [("meta.k8s.io", version) for version in ("v1", "v1beta1")]
# Endpoints of objects.
OBJECT_FORMS: frozenset[Form] = frozenset(
    (group, version, kind)
    for group, version in _META
    for kind in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
)
# /api and /apis. kubectl before 1.30 knows only v2beta1 and must not receive v2.
DISCOVERY_FORMS: frozenset[Form] = frozenset(
    ("apidiscovery.k8s.io", version, "APIGroupDiscoveryList") for version in ("v2", "v2beta1")
)


@dataclass(frozen=True, slots=True)
class Negotiated:
    """The chosen alternative. ``as_`` is empty for the plain object."""

    media_type: str = JSON  # of the response: JSON or YAML
    as_: str = ""
    group: str = ""
    version: str = ""
    pretty: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    @property
    def content_type(self) -> str:
        """Only aggregated discovery names its form in the Content-Type; clients compare it exactly."""
        if self.as_ == "APIGroupDiscoveryList":
            return f"{self.media_type};g={self.group};v={self.version};as={self.as_}"
        return self.media_type


@dataclass(frozen=True, slots=True)
class _Alternative:
    type: str
    subtype: str
    quality: float
    parameters: dict[str, str]

    def covers(self, media_type: str) -> bool:
        type, _, subtype = media_type.partition("/")
        return self.type in (type, "*") and self.subtype in (subtype, "*")


@lru_cache(maxsize=512)  # a client sends the same few headers with every request
def negotiate(
    header: str, *, forms: frozenset[Form] = OBJECT_FORMS, custom: bool = False, stream: bool = False
) -> Negotiated:
    """Choose the form of the response. ``custom``: the objects are custom resources. ``stream``: it is a watch.

    Raises ``NotAcceptable`` when no alternative of the client can be served.
    """
    if not header.strip():
        return Negotiated()
    for alternative in _alternatives(header):
        for media_type in (JSON, YAML, PROTOBUF):
            if not alternative.covers(media_type):
                continue
            chosen = _admit(alternative, media_type, forms, custom)
            if chosen is None:
                continue
            if stream and chosen.media_type == YAML:
                # YAML has no framing for events. kube-apiserver does not try further alternatives either.
                raise _not_acceptable(f"{JSON};stream=watch", f"{PROTOBUF};stream=watch")
            return chosen
    raise _not_acceptable(JSON, YAML, PROTOBUF)


def _alternatives(header: str) -> list[_Alternative]:
    """The clauses of the header by preference; malformed ones are ignored."""
    found = []
    for clause in header.split(","):
        media_range, *parameters = clause.split(";")
        type, _, subtype = (part.strip() for part in media_range.partition("/"))
        if type == "*" and not subtype:
            subtype = "*"
        if not type or not subtype or "/" in subtype:
            continue
        quality, options = 1.0, {}
        for parameter in parameters:
            name, _, value = (part.strip() for part in parameter.partition("="))
            if name == "q":
                quality = _quality(value)
            elif value:
                options[name] = value
        found.append(_Alternative(type, subtype, quality, options))
    return sorted(found, key=lambda a: (-a.quality, a.type == "*", a.subtype == "*"))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _admit(alternative: _Alternative, media_type: str, forms: frozenset[Form], custom: bool) -> Negotiated | None:
    """The form for one alternative in one media type; None if the endpoint cannot produce it."""
    parameters = alternative.parameters
    stream = parameters.get("stream")
    if stream is not None and (stream != "watch" or media_type == YAML):
        return None
    form = parameters.get("g", ""), parameters.get("v", ""), parameters.get("as", "")
    plain = form == ("", "", "")
    if media_type == PROTOBUF:
        if form[2] == "Table" or (plain and custom):
            return None
        media_type = JSON
    if not plain and form not in forms:
        return None
    group, version, as_ = form
    return Negotiated(media_type, as_, group, version, pretty=parameters.get("pretty") == "1")


def _not_acceptable(*media_types: str) -> NotAcceptable:
    return NotAcceptable(f"only the following media types are accepted: {', '.join(media_types)}")
