"""Templates: what the sandboxes of a pool are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import PREVIOUS_REVISION
from sandpool.api.resource import Object, SharedObject
from sandpool.api.small_requests import requests_within
from sandpool.api.template import ALLOWED
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, NotFound
from sandpool.service.errors import NameTaken, ServiceError, unknown_name


@dataclass(frozen=True, slots=True)
class Template:
    """A template as users see it. ``image``, ``cpu`` and ``memory`` are those of its main container."""

    name: str
    namespace: str
    image: str
    cpu: str
    memory: str
    runtime: str  # the runtime class; empty is the default
    created: str
    object: SharedObject

    @classmethod
    def from_object(cls, template: SharedObject) -> Self:
        metadata, spec = template["metadata"], template.get("spec") or {}
        pod = (spec.get("podTemplate") or {}).get("spec") or {}
        container = (pod.get("containers") or [{}])[0]
        limits = (container.get("resources") or {}).get("limits") or {}
        return cls(
            name=metadata["name"],
            namespace=metadata.get("namespace", ""),
            image=container.get("image", ""),
            cpu=str(limits.get("cpu", "")),
            memory=str(limits.get("memory", "")),
            runtime=pod.get("runtimeClassName", ""),
            created=metadata.get("creationTimestamp", ""),
            object=template,
        )


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """The content of a template to create. Without a ``command`` the image's own is run."""

    image: str
    command: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None  # size of the writable root
    port: int | None = None  # the container is ready when this port accepts connections
    runtime: str | None = None
    freeze: bool = False  # warm sandboxes are frozen until they are claimed
    freeze_after: str | None = None  # how long a claimed sandbox is not used before it is frozen
    suspend_after: str | None = None  # and before it is suspended
    late_binding: bool = False  # claims may set variables, which are handed to their warm sandboxes
    env_policy: str | None = None  # whether claims may set variables: Allowed, Overrides or Disallowed

    def document(self, name: str) -> Object:
        """The template as an API object."""
        container: dict[str, Any] = {"name": "main", "image": self.image}
        if self.command:
            container["command"] = list(self.command)
        if self.env:
            container["env"] = [{"name": each, "value": value} for each, value in self.env.items()]
        if self.port is not None:
            container["ports"] = [{"containerPort": self.port}]
            container["readinessProbe"] = {"tcpSocket": {"port": self.port}}
        amounts = {"cpu": self.cpu, "memory": self.memory, "ephemeral-storage": self.disk}
        limits = {each: value for each, value in amounts.items() if value is not None}
        if limits:
            # Small requests: idle members of a pool need next to nothing, and the limits still hold.
            container["resources"] = {"limits": limits, "requests": requests_within(limits)}
        pod: dict[str, Any] = {"containers": [container]}
        if self.runtime is not None:
            pod["runtimeClassName"] = self.runtime
        template: dict[str, Any] = {"spec": pod}
        wanted = {
            labels.FREEZE_WHILE_WARM: "true" if self.freeze else None,
            labels.IDLE_FREEZE_AFTER: self.freeze_after,
            labels.IDLE_SUSPEND_AFTER: self.suspend_after,
        }
        if annotations := {key: value for key, value in wanted.items() if value is not None}:
            template["metadata"] = {"annotations": annotations}
        metadata: dict[str, Any] = {"name": name}
        spec: dict[str, Any] = {"podTemplate": template}
        if self.late_binding:
            metadata["annotations"] = {labels.LATE_BINDING: "true"}
        if policy := self.env_policy or (ALLOWED if self.late_binding else None):
            spec["envVarsInjectionPolicy"] = policy
        return {
            "apiVersion": SANDBOX_TEMPLATE.api_version,
            "kind": SANDBOX_TEMPLATE.kind,
            "metadata": metadata,
            "spec": spec,
        }


@dataclass(frozen=True, slots=True)
class TemplateChange:
    """Changes of the main container of a template. None stays as it is; an empty limit is removed."""

    image: str | None = None
    cpu: str | None = None
    memory: str | None = None

    def applied(self, spec: SharedObject) -> Object:
        """The spec of a template with this change."""
        pod = spec["podTemplate"]["spec"]
        container, *others = pod["containers"]
        limits = dict((container.get("resources") or {}).get("limits") or {})
        requests = dict((container.get("resources") or {}).get("requests") or {})
        for name, value in (("cpu", self.cpu), ("memory", self.memory)):
            if value == "":
                limits.pop(name, None)
            elif value is not None:
                limits[name] = value
                requests = {**requests_within({name: value}), **requests}
        resources = {**(container.get("resources") or {}), "limits": limits, "requests": requests}
        changed = {**container, "image": self.image or container["image"]}
        if limits or requests:
            changed["resources"] = {name: value for name, value in resources.items() if value}
        template = {**spec["podTemplate"], "spec": {**pod, "containers": [changed, *others]}}
        return {**spec, "podTemplate": template}


class TemplateInUse(ServiceError):
    """Pools are made from the template."""


class NothingToUndo(ServiceError):
    """The template has no former revision."""


class Templates:
    """The templates of a namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def list(self, *, all_namespaces: bool = False) -> tuple[Template, ...]:
        listed = await self.client.list(SANDBOX_TEMPLATE, None if all_namespaces else self.namespace)
        return tuple(Template.from_object(each) for each in listed["items"])

    async def get(self, name: str) -> Template:
        """Raises ``UnknownName`` with close matches."""
        try:
            return Template.from_object(await self.client.get(SANDBOX_TEMPLATE, name, self.namespace))
        except NotFound:
            raise await self._unknown(name) from None

    async def create(self, document: Object) -> Template:
        """Create a template. Raises ``NameTaken``."""
        try:
            return Template.from_object(await self.client.create(SANDBOX_TEMPLATE, document, self.namespace))
        except AlreadyExists:
            name = document["metadata"]["name"]
            advice = f"Look at it with: sandpool template show {name}"
            raise NameTaken(f'template "{name}" already exists', advice) from None

    async def change(self, name: str, change: TemplateChange, *, dry_run: bool = False) -> Template:
        """Change a template; its pools roll out to it as their strategy says. The spec before is kept in an annotation,
        for ``undo``. With ``dry_run`` the API only checks the change. Raises ``Conflict`` if another writer changes the
        template at the same time."""
        found = (await self.get(name)).object
        return await self._replace(found, change.applied(found["spec"]), dry_run=dry_run)

    async def undo(self, name: str) -> Template:
        """Return to the spec before the last ``change``. A second undo takes the first one back."""
        found = (await self.get(name)).object
        before = previous_revision(found)
        if before is None:
            raise NothingToUndo(
                f'template "{name}" has no former revision', "Only changes made with Sandpool can be undone."
            )
        return await self._replace(found, before)

    async def _replace(self, found: SharedObject, spec: SharedObject, *, dry_run: bool = False) -> Template:
        metadata = found["metadata"]
        if spec == found["spec"]:
            return Template.from_object(found)
        kept = orjson.dumps(found["spec"], option=orjson.OPT_SORT_KEYS).decode()
        patch = {
            "metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {PREVIOUS_REVISION: kept}},
            "spec": _merge(found["spec"], spec),
        }
        answer = await self.client.patch(
            SANDBOX_TEMPLATE, metadata["name"], MergePatch(patch), self.namespace, dry_run=dry_run
        )
        return Template.from_object(answer)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a template. Raises ``TemplateInUse`` if pools use it, unless ``force`` is set."""
        if not force:
            pools = await self.client.list(SANDBOX_WARM_POOL, self.namespace)
            users = [
                pool["metadata"]["name"]
                for pool in pools["items"]
                if pool["spec"]["sandboxTemplateRef"]["name"] == name
            ]
            if users:
                raise TemplateInUse(
                    f'template "{name}" is used by {"pool" if len(users) == 1 else "pools"} {", ".join(users)}',
                    f"Remove them first with: sandpool pool rm {' '.join(users)}",
                )
        try:
            await self.client.delete(SANDBOX_TEMPLATE, name, self.namespace)
        except NotFound:
            raise await self._unknown(name) from None

    async def _unknown(self, name: str) -> ServiceError:
        known = [template.name for template in await self.list()]
        advice = "List them with: sandpool template ls" if known else ""
        return unknown_name("template", name, self.namespace, known, advice)


def previous_revision(template: SharedObject) -> Object | None:
    """The spec of a template before its last change; None if it is unknown."""
    text = (template["metadata"].get("annotations") or {}).get(PREVIOUS_REVISION)
    try:
        spec: Object = orjson.loads(text or "null")
        spec["podTemplate"]["spec"]["containers"][0]["image"]
    except (orjson.JSONDecodeError, TypeError, KeyError, IndexError):
        return None
    return spec


def _merge(old: SharedObject, new: SharedObject) -> Object:
    """The merge patch that turns one document into the other: members that are missing become null."""
    patch: Object = dict.fromkeys(old.keys() - new.keys())
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            patch[name] = _merge(before, value)
        elif before != value:
            patch[name] = value
    return patch
