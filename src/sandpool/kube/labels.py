"""What a label key and a label value may look like, in kube-apiserver's words."""

from __future__ import annotations

import re

_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_NAME}')"
)
_VALUE = f"({_NAME})?"
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character "
    f"(e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
)
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*"
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    f"end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_MAX_NAME = _MAX_VALUE = 63
_MAX_SUBDOMAIN = 253

_is_name = re.compile(_NAME).fullmatch
_is_value = re.compile(_VALUE).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch


def label_key_errors(key: str) -> list[str]:
    """What is wrong with a label key (also called a qualified name); empty if nothing is."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif prefix:
        if len(prefix.encode()) > _MAX_SUBDOMAIN:
            problems.append(f"prefix part must be no more than {_MAX_SUBDOMAIN} bytes")
        if not _is_subdomain(prefix):
            problems.append(f"prefix part {_SUBDOMAIN_RULE}")
    if not name:
        problems.append("name part must be non-empty")
    elif len(name.encode()) > _MAX_NAME:
        problems.append(f"name part must be no more than {_MAX_NAME} bytes")
    if not _is_name(name):
        problems.append(f"name part {_NAME_RULE}")
    return problems


def label_value_errors(value: str) -> list[str]:
    """What is wrong with a label value; empty if nothing is."""
    problems = []
    if len(value.encode()) > _MAX_VALUE:
        problems.append(f"must be no more than {_MAX_VALUE} bytes")
    if not _is_value(value):
        problems.append(_VALUE_RULE)
    return problems
