"""Validation of names: the name formats of Kubernetes, with its error messages.

Every check returns the list of problems of a value; an empty list means valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SEARCH_LABEL = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH_DOMAIN = rf"{_SEARCH_LABEL}(\.{_SEARCH_LABEL})*"
_DNS_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_QUALIFIED})?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"

_HTTP_HEADER = "[-A-Za-z0-9]+"

_is_label = re.compile(_LABEL).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch
_is_search_domain = re.compile(_SEARCH_DOMAIN).fullmatch
_is_dns_1035 = re.compile(_DNS_1035).fullmatch
_is_qualified = re.compile(_QUALIFIED).fullmatch
_is_label_value = re.compile(_LABEL_VALUE).fullmatch
_is_config_key = re.compile(_CONFIG_KEY).fullmatch
# Matches a valid key in one step: keys are checked on every write.
_is_key = re.compile(rf"(?:(?=[^/]{{1,253}}/){_SUBDOMAIN}/)?(?=.{{1,63}}\Z){_QUALIFIED}").fullmatch
# The same for a label, as ``key=value``.
_is_label_entry = re.compile(
    rf"(?:(?=[^/]{{1,253}}/){_SUBDOMAIN}/)?(?=[^=]{{1,63}}=){_QUALIFIED}=(?=.{{0,63}}\Z){_LABEL_VALUE}"
).fullmatch
_is_http_header = re.compile(_HTTP_HEADER).fullmatch
_is_port_name = re.compile("[-a-z0-9]+").fullmatch

LABEL_LENGTH: Final = 63
SUBDOMAIN_LENGTH: Final = 253

Check = Callable[[str], list[str]]


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} characters"


def _mismatch(rule: str, pattern: str, *examples: str) -> str:
    # The two spaces that follow each example but the last are kube-apiserver's.
    shown = "e.g. " + " or ".join(f"'{example}', " for example in examples) if examples else ""
    return f"{rule} ({shown}regex used for validation is '{pattern}')"


_KEY_RULE: Final = _mismatch(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    _QUALIFIED,
    "MyName",
    "my.name",
    "123-abc",
)


def subdomain(name: str) -> list[str]:
    """Dot-separated DNS labels: the syntax of most names."""
    wrong = []
    if len(name.encode()) > SUBDOMAIN_LENGTH:
        wrong.append(_too_long(SUBDOMAIN_LENGTH))
    if not _is_subdomain(name):
        wrong.append(
            _mismatch(
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
                "and must start and end with an alphanumeric character",
                _SUBDOMAIN,
                "example.com",
            )
        )
    return wrong


def search_domain(name: str) -> list[str]:
    """A subdomain that may contain underscores, as in search lists of resolvers."""
    wrong = []
    if len(name.encode()) > SUBDOMAIN_LENGTH:
        wrong.append(_too_long(SUBDOMAIN_LENGTH))
    if not _is_search_domain(name):
        wrong.append(
            _mismatch(
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
                "and must start and end with an alphanumeric character",
                _SEARCH_DOMAIN,
                "example.com",
            )
        )
    return wrong


def label(name: str) -> list[str]:
    """One DNS label: namespaces, containers, volumes."""
    wrong = []
    if len(name.encode()) > LABEL_LENGTH:
        wrong.append(_too_long(LABEL_LENGTH))
    if not _is_label(name):
        if _is_subdomain(name):
            wrong.append("must not contain dots")
        else:
            wrong.append(
                _mismatch(
                    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
                    "and must start and end with an alphanumeric character",
                    _LABEL,
                    "my-name",
                    "123-abc",
                )
            )
    return wrong


def dns_1035_label(name: str) -> list[str]:
    """One DNS label that starts with a letter: the names of custom resources' types."""
    wrong = []
    if len(name.encode()) > LABEL_LENGTH:
        wrong.append(_too_long(LABEL_LENGTH))
    if not _is_dns_1035(name):
        wrong.append(
            _mismatch(
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
                "start with an alphabetic character, and end with an alphanumeric character",
                _DNS_1035,
                "my-name",
                "abc-123",
            )
        )
    return wrong


def path_segment(name: str) -> list[str]:
    """Anything that can stand in a URL between two slashes: roles and their bindings."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return _path_prefix(name)


def _path_prefix(name: str) -> list[str]:
    return [f"may not contain '{char}'" for char in "/%" if char in name]


def qualified_name(name: str) -> list[str]:
    """An optional DNS prefix and a name: the keys of labels and annotations, finalizers."""
    if _is_key(name):
        return []
    prefix, slash, rest = name.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_KEY_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    wrong = []
    if slash and not prefix:
        wrong.append("prefix part must be non-empty")
    elif slash:
        wrong += [f"prefix part {why}" for why in subdomain(prefix)]
    if not rest:
        wrong.append("name part must be non-empty")
    elif len(rest.encode()) > LABEL_LENGTH:
        wrong.append("name part " + _too_long(LABEL_LENGTH))
    if not _is_qualified(rest):
        wrong.append("name part " + _KEY_RULE)
    return wrong


def is_label(key: str, value: str) -> bool:
    """Whether key and value of a label are valid: ``qualified_name`` and ``label_value`` find nothing wrong."""
    return _is_label_entry(f"{key}={value}") is not None


def label_value(value: str) -> list[str]:
    wrong = []
    if len(value.encode()) > LABEL_LENGTH:
        wrong.append(_too_long(LABEL_LENGTH))
    if not _is_label_value(value):
        wrong.append(
            _mismatch(
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
                "and must start and end with an alphanumeric character",
                _LABEL_VALUE,
                "MyValue",
                "my_value",
                "12345",
            )
        )
    return wrong


def config_key(key: str) -> list[str]:
    """A key of a ConfigMap or Secret, which becomes a file name."""
    wrong = []
    if len(key.encode()) > SUBDOMAIN_LENGTH:
        wrong.append(_too_long(SUBDOMAIN_LENGTH))
    if not _is_config_key(key):
        wrong.append(
            _mismatch(
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
                _CONFIG_KEY,
                "key.name",
                "KEY_NAME",
                "key-name",
            )
        )
    if key in (".", ".."):
        wrong.append(f"must not be '{key}'")
    elif key.startswith(".."):
        wrong.append("must not start with '..'")
    return wrong


def environment_variable(name: str) -> list[str]:
    if not name:
        return ["environment variable name must be non-empty"]
    if name.isascii() and name.isprintable() and "=" not in name:
        return []
    return ["a valid environment variable name must consist only of printable ASCII characters other than '='"]


def http_header(name: str) -> list[str]:
    if _is_http_header(name):
        return []
    rule = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return [_mismatch(rule, _HTTP_HEADER, "X-Header-Name")]


def port_name(name: str) -> list[str]:
    wrong = []
    if len(name.encode()) > 15:
        wrong.append(_too_long(15))
    if not _is_port_name(name):
        wrong.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not any("a" <= char <= "z" for char in name):
        wrong.append("must contain at least one letter (a-z)")
    if "--" in name:
        wrong.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        wrong.append("must not begin or end with a hyphen")
    return wrong


#: The syntaxes ``metadata.name`` may have, by the name a kind's rules give.
FORMATS: Final[dict[str, Check]] = {"subdomain": subdomain, "label": label, "path": path_segment}


def check_name(name: str, form: str) -> list[str]:
    return FORMATS[form](name)


def check_generate_name(prefix: str, form: str) -> list[str]:
    """Check a ``generateName`` prefix."""
    if form == "path":
        return _path_prefix(prefix)
    # A prefix usually ends in a dash, which a full name must not.
    return FORMATS[form](prefix[:-2] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix)
