"""Volume claim templates a claim brings: how they join those of the template, if the template lets them."""

from __future__ import annotations

from collections.abc import Sequence

from sandpool.api.resource import Object
from sandpool.api.template import ALLOWED, DISALLOWED, OVERRIDES
from sandpool.controllers.claim.errors import ClaimError, volume_claim_templates_rejected


def merge(template: Sequence[Object], claim: Sequence[Object], policy: str) -> list[Object]:
    """What the sandbox of a claim gets: under ``Allowed`` both lists, under ``Overrides`` the claim's in place of those
    of the same name. Names must be there and differ in each list, also in a template that is used as it is."""
    if not claim:
        _check(template, "invalid volume claim templates in template: ")
        return list(template)
    _check(template, "failed to merge volume claim templates: template: ")
    _check(claim, "failed to merge volume claim templates: claim: ")
    known = {_name(each) for each in template}
    if policy == ALLOWED:
        for each in claim:
            if _name(each) in known:
                raise _rejected(
                    "overriding volume claim templates is forbidden by the template: cannot override template volume "
                    f'"{_name(each)}"'
                )
        return [*template, *claim]
    if policy == OVERRIDES:
        own = {_name(each): each for each in claim}
        return [own.get(_name(each), each) for each in template] + [each for each in claim if _name(each) not in known]
    if policy in ("", DISALLOWED):
        raise _rejected("volume claim templates are disallowed by the template")
    raise _rejected(f'unknown volume claim templates policy "{policy}"')


def _rejected(detail: str) -> ClaimError:
    return volume_claim_templates_rejected(f"failed to merge volume claim templates: {detail}")


def _check(templates: Sequence[Object], where: str) -> None:
    seen: set[str] = set()
    for index, template in enumerate(templates):
        name = _name(template)
        if not name:
            raise volume_claim_templates_rejected(
                f"{where}invalid volume claim templates: name at index {index} is empty"
            )
        if name in seen:
            raise volume_claim_templates_rejected(f'{where}invalid volume claim templates: duplicate name "{name}"')
        seen.add(name)


def _name(template: Object) -> str:
    name: str = (template.get("metadata") or {}).get("name") or ""
    return name
