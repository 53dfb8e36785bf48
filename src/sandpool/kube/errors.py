"""API errors. Clients raise them for Status responses; the embedded server raises them to send one.

The constructors produce the codes, reasons, messages and details of kube-apiserver, because clients match on them.
Our own code matches errors by type or by ``details.causes``, never by message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandpool.api.causes import Cause as Cause
from sandpool.api.resource import Object, ResourceType


class InvalidName(ValueError):
    """A name that no object can have, refused before it changes the meaning of a request's path."""


class ApiError(Exception):
    """A Status response with a code of 400 or more."""

    code = 500
    reason = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        if reason is not None:
            self.reason = reason
        self.details: Mapping[str, Any] = details or {}
        # Metadata of the Status. With an expired continue token it has a token that is still valid.
        self.list_metadata: Mapping[str, Any] = {}

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait as requested by the server; None if it requested no delay."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if isinstance(seconds, int | float) else None

    def has_cause(self, reason: str) -> bool:
        """Whether ``details.causes`` names this reason."""
        return any(cause.get("reason") == reason for cause in self._causes())

    def has_cause_at(self, field: str) -> bool:
        """Whether ``details.causes`` names this field, such as ``metadata.uid``."""
        return any(cause.get("field") == field for cause in self._causes())

    def _causes(self) -> Iterable[Mapping[str, Any]]:
        causes = self.details.get("causes")
        return [each for each in causes if isinstance(each, Mapping)] if isinstance(causes, list | tuple) else ()

    def status(self) -> Object:
        status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(self.list_metadata),
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        # kubectl reads the name from the details of a NotFound and crashes without details.
        if self.details or self.code == NotFound.code:
            status["details"] = dict(self.details)
        status["code"] = self.code
        return status


class BadRequest(ApiError):
    code, reason = 400, "BadRequest"


class Unauthorized(ApiError):
    code, reason = 401, "Unauthorized"


class Forbidden(ApiError):
    code, reason = 403, "Forbidden"


class NotFound(ApiError):
    code, reason = 404, "NotFound"


class MethodNotAllowed(ApiError):
    code, reason = 405, "MethodNotAllowed"


class NotAcceptable(ApiError):
    code, reason = 406, "NotAcceptable"


class AlreadyExists(ApiError):
    code, reason = 409, "AlreadyExists"


class Conflict(ApiError):
    code, reason = 409, "Conflict"


class Gone(ApiError):
    code, reason = 410, "Gone"


class Expired(Gone):
    """The resourceVersion or continue token is older than the retained history: list again."""

    code, reason = 410, "Expired"


class TooLarge(ApiError):
    code, reason = 413, "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code, reason = 415, "UnsupportedMediaType"


class Invalid(ApiError):
    code, reason = 422, "Invalid"


class TooManyRequests(ApiError):
    code, reason = 429, "TooManyRequests"


class InternalError(ApiError):
    code, reason = 500, "InternalError"


class ServiceUnavailable(ApiError):
    code, reason = 503, "ServiceUnavailable"


class ServerTimeout(ApiError):
    code, reason = 504, "Timeout"


class InsufficientStorage(ApiError):
    code, reason = 507, "InsufficientStorage"


# Message for a patch or object that exceeds the nesting limit.
TOO_DEEP = "error decoding patch: invalid character '{' exceeded max depth"


class PatchError(ApiError):
    """A patch that is invalid or does not apply to this object.

    kube-apiserver answers most of them with one generic sentence. The reason is sent as a cause, which kubectl prints.
    """

    code, reason = 422, "Invalid"

    def __init__(self, why: str) -> None:
        super().__init__(
            "the server rejected our request due to an error in our request",
            details={"causes": [{"reason": "FieldValueInvalid", "message": why, "field": "patch"}]},
        )
        self.why = why

    def __str__(self) -> str:
        return self.why


class MalformedPatch(PatchError):
    """A patch that is invalid for every object."""

    code, reason = 400, "BadRequest"

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.message = why
        self.details = {}

    @classmethod
    def wrong_type(
        cls, value: Any, where: str, wanted: str, *, doing: str = "error decoding patch: "
    ) -> MalformedPatch:
        """A JSON value of the wrong type, with the message of Go's decoder."""
        names = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
        return cls(f"{doing}json: cannot unmarshal {names.get(type(value), 'null')} into Go {where} of type {wanted}")


class UnworkablePatch(MalformedPatch):
    """A strategic merge patch with an invalid directive. kube-apiserver answers 500 without a reason."""

    code, reason = 500, ""


def _subclasses(cls: type[ApiError]) -> Iterable[type[ApiError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


# A Status does not identify patch errors: a client sees a rejected patch as Invalid or BadRequest.
_BY_REASON = {cls.reason: cls for cls in _subclasses(ApiError) if not issubclass(cls, PatchError)}
_BY_CODE = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    406: NotAcceptable,
    409: Conflict,
    410: Gone,
    413: TooLarge,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    500: InternalError,
    503: ServiceUnavailable,
    504: ServerTimeout,
    507: InsufficientStorage,
}


def from_status(status: Any, code: int) -> ApiError:
    """The typed error for a Status body. Other bodies (a proxy's error page) are mapped by HTTP code."""
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return _BY_CODE.get(code, ApiError)(f"the server answered {code} without a Status body", code=code)
    code = status.get("code") or code
    reason = status.get("reason") or ""
    details = status.get("details")
    cls = _BY_REASON.get(reason) or _BY_CODE.get(code, ApiError)
    error = cls(
        status.get("message") or reason or f"the server answered {code}",
        code=code,
        reason=reason or cls.reason,
        details=details if isinstance(details, dict) else {},
    )
    if isinstance(metadata := status.get("metadata"), dict):
        error.list_metadata = metadata
    return error


def _details(type: ResourceType, name: str, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name, "group": type.group, "kind": type.plural, **more}
    return {key: value for key, value in details.items() if value not in ("", None)}


def not_found(type: ResourceType, name: str) -> NotFound:
    return NotFound(f'{type.group_resource} "{name}" not found', details=_details(type, name))


def already_exists(type: ResourceType, name: str) -> AlreadyExists:
    return AlreadyExists(f'{type.group_resource} "{name}" already exists', details=_details(type, name))


def conflict(type: ResourceType, name: str, why: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {type.group_resource} "{name}": {why}', details=_details(type, name)
    )


def forbidden(type: ResourceType, name: str, why: str) -> Forbidden:
    subject = f'{type.group_resource} "{name}"' if name else type.group_resource
    return Forbidden(f"{subject} is forbidden: {why}", details=_details(type, name))


def invalid(type: ResourceType, name: str, causes: Iterable[Cause]) -> Invalid:
    causes = list(causes)
    listed = ", ".join(map(str, causes))
    message = listed if len(causes) == 1 else f"[{listed}]"
    details = {
        "name": name,
        "group": type.group,
        "kind": type.kind,
        "causes": [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes],
    }
    subject = f"{type.kind}.{type.group}" if type.group else type.kind
    return Invalid(f'{subject} "{name}" is invalid: {message}', details={k: v for k, v in details.items() if v})


#: Reason of the cause with which the API refuses to create an object in a namespace that is being deleted.
NAMESPACE_TERMINATING: Final = "NamespaceTerminating"


def namespace_terminating(type: ResourceType, name: str, namespace: str) -> Forbidden:
    """The refusal to create an object in a namespace that is being deleted."""
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    cause = {
        "reason": NAMESPACE_TERMINATING,
        "message": f"namespace {namespace} is being terminated",
        "field": "metadata.namespace",
    }
    refusal = forbidden(type, name, why)
    return Forbidden(refusal.message, details={**refusal.details, "causes": [cause]})


def is_namespace_terminating(error: BaseException) -> bool:
    """Whether the API refused a create because the namespace is being deleted. The cause decides, not the message."""
    return isinstance(error, ApiError) and error.has_cause(NAMESPACE_TERMINATING)
