"""A pod's hostname, /etc/hosts and /etc/resolv.conf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandpool.api.resource import Object, SharedObject

_LONGEST_HOSTNAME: Final = 63
#: The kernel's limit.
LONGEST_NAME: Final = 64
_MOST_SEARCHES: Final = 32
_MOST_NAMESERVERS: Final = 3
_OPTIONS: Final = ("ndots:5",)


def hostname(pod: SharedObject) -> str:
    """Return the pod's name unless its spec sets another, truncated to the length of a hostname."""
    spec = pod["spec"]
    override = spec.get("hostnameOverride")
    if override:
        return str(override)
    name: str = spec.get("hostname") or pod["metadata"]["name"]
    return name[:_LONGEST_HOSTNAME].rstrip("-.")


def domain_name(pod: SharedObject, cluster_domain: str) -> str:
    """Return the fully qualified name within the pod's subdomain; empty if it has none."""
    subdomain = pod["spec"].get("subdomain")
    if not subdomain:
        return ""
    return f"{hostname(pod)}.{subdomain}.{pod['metadata']['namespace']}.svc.{cluster_domain}"


def own_name(pod: SharedObject, cluster_domain: str) -> str:
    """Return the hostname that the pod's processes see."""
    full = domain_name(pod, cluster_domain) if pod["spec"].get("setHostnameAsFQDN") else ""
    return full or hostname(pod)


def hosts_file(pod: SharedObject, addresses: Sequence[str], cluster_domain: str) -> str:
    lines = [
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
    ]
    names = [name for name in (domain_name(pod, cluster_domain), hostname(pod)) if name]
    lines += ["\t".join((address, *names)) for address in addresses]
    lines += ["\t".join((alias["ip"], *alias["hostnames"])) for alias in pod["spec"].get("hostAliases") or ()]
    return "\n".join(lines) + "\n"


def resolv_conf(pod: SharedObject, nameservers: Sequence[str], cluster_domain: str, host_text: str) -> str:
    """``nameservers`` are those of the cluster; ``host_text`` is the machine's /etc/resolv.conf."""
    spec = pod["spec"]
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    config = spec.get("dnsConfig") or {}
    servers: list[str] = []
    searches: list[str] = []
    options: list[str] = []
    if policy in ("ClusterFirst", "ClusterFirstWithHostNet") and nameservers:
        namespace = pod["metadata"]["namespace"]
        servers = list(nameservers)
        searches = [f"{namespace}.svc.{cluster_domain}", f"svc.{cluster_domain}", cluster_domain]
        options = list(_OPTIONS)
    elif policy != "None":
        servers, searches, options = _read(host_text)
    servers = _merged(servers, config.get("nameservers") or ())[:_MOST_NAMESERVERS]
    searches = _merged(searches, config.get("searches") or ())[:_MOST_SEARCHES]
    options = _options(options, config.get("options") or ())
    lines = [f"search {' '.join(searches)}"] if searches else []
    lines += [f"nameserver {server}" for server in servers]
    lines += [f"options {' '.join(options)}"] if options else []
    return "\n".join(lines) + "\n" if lines else ""


def _read(text: str) -> tuple[list[str], list[str], list[str]]:
    servers: list[str] = []
    searches: list[str] = []
    options: list[str] = []
    for line in text.splitlines():
        keyword, *values = line.split("#")[0].split(";")[0].split() or [""]
        if keyword == "nameserver" and values:
            servers.append(values[0])
        elif keyword == "search":
            searches = values
        elif keyword == "options":
            options = values
    return servers, searches, options


def _merged(first: Sequence[str], more: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*first, *more]))


def _options(first: Sequence[str], more: Sequence[Object]) -> list[str]:
    """Merge resolver options. A later option replaces an earlier one of the same name."""
    found = {text.partition(":")[0]: text for text in first}
    for option in more:
        value = option.get("value")
        found[option["name"]] = option["name"] if value in (None, "") else f"{option['name']}:{value}"
    return list(found.values())
