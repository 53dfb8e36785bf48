"""Template revisions: a template, hashed and with secure defaults, from which pools and claims build Sandboxes.

The Sandbox controller runs the spec of a Sandbox as it is. The creator of a Sandbox therefore adds everything that
makes it safe by default, recognisable and comparable with its template. That happens here.

Two specs are compared by meaning. A manifest may omit a field or write it as empty, and may write a quantity as ``1Gi``
or ``1024Mi``; such differences must not replace a pool. Which differences count is a property of the field, so the
comparison follows its schema. A field that Go declares as a pointer distinguishes empty from absent (``emptyDir: {}``
is a volume, no ``emptyDir`` is none). All other fields do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

from sandpool.api import quantity
from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import POD_NAME, TEMPLATE_REF, TEMPLATE_REF_HASH
from sandpool.api.names import name_hash
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.api.schema import core
from sandpool.api.schema.shape import Shape
from sandpool.api.views import SandboxView, TemplateView
from sandpool.controllers.informers import Caches

#: Resolvers outside the cluster. The default network policy blocks the cluster's own.
PUBLIC_NAMESERVERS: Final = ("8.8.8.8", "1.1.1.1")

_POD_SPEC: Final = "io.k8s.api.core.v1.PodSpec"
_CLAIM_SPEC: Final = "io.k8s.api.core.v1.PersistentVolumeClaimSpec"
_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class TemplateRevision:
    """A template as its sandboxes see it. Computed once per change of the template and shared by all its sandboxes."""

    template: str
    ref_hash: str  # hash of the name of the template; the label by which sandboxes and policies find it
    hash: str  # of the template as written, before defaults were added
    pod_template_hash: str  # deprecated companion of ``hash``
    spec: Object  # podTemplate, volumeClaimTemplates, service; the pod's spec with secure defaults

    @classmethod
    def of(cls, template: TemplateView) -> TemplateRevision:
        written = _parts(template.pod_template, template.volume_claim_templates, template.service)
        pod_spec = secure_defaults(template.pod_template.get("spec") or {}, template)
        return cls(
            template=template.name,
            ref_hash=name_hash(template.name),
            hash=content_hash(written),
            pod_template_hash=content_hash(template.pod_template),
            spec={**written, "podTemplate": {**template.pod_template, "spec": pod_spec}},
        )

    def matches(self, sandbox: SandboxView) -> bool:
        """Whether a sandbox has what this revision would create, in the fields that cannot be changed in place: the
        spec of the pod, the volume claim templates (by name and spec, in order) and the service. Labels and annotations
        of pods and volume claims are no reason to replace a sandbox."""
        return (
            self.spec.get("service") == sandbox.service
            and semantically_equal(
                self.spec["podTemplate"]["spec"], sandbox.pod_template.get("spec") or {}, core.definition(_POD_SPEC)
            )
            and _same_volume_claims(self.spec.get("volumeClaimTemplates") or [], sandbox.volume_claim_templates)
        )


def content_hash(content: Any) -> str:
    """Hash decoded JSON, independent of the process and of the order of keys.

    Sandboxes of other implementations carry hashes of another length, which never equal one of these by accident. Such
    sandboxes are compared by meaning.
    """
    canonical = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    return blake2b(canonical, digest_size=_HASH_BYTES).hexdigest()


def secure_defaults(pod_spec: Object, template: TemplateView) -> Object:
    """Return the spec of a pod with secure defaults where its author left them out; the very same object if nothing is
    added.

    The defaults are: no token of the service account, and reachable name servers behind the default network policy.
    """
    added: Object = {}
    if pod_spec.get("automountServiceAccountToken") is None:
        added["automountServiceAccountToken"] = False
    if template.network_managed and template.network_policy is None and not pod_spec.get("dnsPolicy"):
        added["dnsPolicy"] = "None"
        added["dnsConfig"] = {"nameservers": list(PUBLIC_NAMESERVERS)}
    return {**pod_spec, **added} if added else pod_spec


def new_sandbox(
    revision: TemplateRevision,
    *,
    namespace: str,
    name: str,
    owner: Object,
    labels: Mapping[str, str],
    pod_labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    spec: Object | None = None,
) -> Object:
    """Return the complete Sandbox that a pool or a claim creates from a revision.

    ``spec`` replaces the spec of the revision where a claim changes it (environment, volumes). ``pod_labels`` override
    those of the pod template. The caller chooses the name, and the pod gets the same one, so that recording the name of
    the pod needs no second request.
    """
    spec = revision.spec if spec is None else spec
    return {
        "apiVersion": SANDBOX.api_version,
        "kind": SANDBOX.kind,
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {TEMPLATE_REF_HASH: revision.ref_hash, **labels},
            "annotations": {
                TEMPLATE_REF: revision.template,
                POD_NAME: name,
                **(annotations or {}),
            },
            "ownerReferences": [owner],
        },
        "spec": {
            **spec,
            "podTemplate": _with_labels(spec["podTemplate"], {TEMPLATE_REF_HASH: revision.ref_hash, **pod_labels}),
        },
    }


def _with_labels(pod_template: Object, labels: Mapping[str, str]) -> Object:
    metadata = pod_template.get("metadata") or {}
    return {**pod_template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}}


def _parts(pod_template: SharedObject, volume_claim_templates: Sequence[SharedObject], service: bool | None) -> Object:
    """The part of a spec that templates and sandboxes share; unset fields are omitted."""
    parts: Object = {"podTemplate": pod_template}
    if volume_claim_templates:
        parts["volumeClaimTemplates"] = volume_claim_templates
    if service is not None:
        parts["service"] = service
    return parts


def _same_volume_claims(left: Sequence[SharedObject], right: Sequence[SharedObject]) -> bool:
    shape = core.definition(_CLAIM_SPEC)
    return len(left) == len(right) and all(
        (a.get("metadata") or {}).get("name") == (b.get("metadata") or {}).get("name")
        and semantically_equal(a.get("spec") or {}, b.get("spec") or {}, shape)
        for a, b in zip(left, right, strict=True)
    )


class TemplateRevisions:
    """Memoises the revision of each template in the cache."""

    def __init__(self, caches: Caches) -> None:
        self.caches = caches
        # With the UID and generation of the template. Its status and labels do not matter.
        self._made: dict[Key, tuple[str, int, TemplateRevision]] = {}

    def of(self, namespace: str, template: str) -> TemplateRevision | None:
        """The current revision of a template; None if the template does not exist."""
        key = Key(namespace, template)
        view = self.caches.templates.get(key)
        if view is None:
            self._made.pop(key, None)
            return None
        made = self._made.get(key)
        if made is not None and made[:2] == (view.uid, view.generation):
            return made[2]
        revision = TemplateRevision.of(view)
        self._made[key] = (view.uid, view.generation, revision)
        return revision


_ANYTHING: Final = Shape()


def semantically_equal(left: Any, right: Any, shape: Shape) -> bool:
    """Whether two values of this shape mean the same. Order counts in lists. Values without a shape are compared as
    they are."""
    if left is right:
        return True
    if shape.format == "quantity":
        return _same_amount(left, right)
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        items = shape.items or _ANYTHING
        return len(left) == len(right) and all(
            semantically_equal(a, b, items) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, dict):
        return all(
            _same_field(left.get(key), right.get(key), shape.properties.get(key) or shape.additional or _ANYTHING)
            for key in left.keys() | right.keys()
        )
    return bool(left == right)


def _same_field(left: Any, right: Any, shape: Shape) -> bool:
    if _absent(left, shape) or _absent(right, shape):
        return _absent(left, shape) and _absent(right, shape)
    return semantically_equal(left, right, shape)


def _absent(value: Any, shape: Shape) -> bool:
    if value is None:
        return True
    is_pointer = shape.zero == "keep" or shape.int_or_string
    return not value and not is_pointer and shape is not _ANYTHING


def _same_amount(left: Any, right: Any) -> bool:
    try:
        return quantity.parse(left) == quantity.parse(right)
    except (ValueError, TypeError):  # not a quantity: the lean schema does not validate pods
        return bool(left == right)
