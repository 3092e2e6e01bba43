"""Where a webhook may go: addresses are written plainly, resolved, checked one by one, and only then connected to.

The host name alone proves nothing: whoever owns a name decides what it resolves to, and may decide otherwise a moment later.
So every attempt resolves anew, refuses if any address is not a public one, and connects to an address that was checked.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import idna

MOST_URL_CHARS = 2000
DEFAULT_PORTS = (443, 8443)

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class UrlRefused(Exception):
    """An address that must not be called. `reason` is a stable word, `public` a sentence for whoever gave the address."""

    code = "url_not_allowed"
    retryable = False

    def __init__(self, reason: str, public: str) -> None:
        super().__init__(public)
        self.reason = reason
        self.public = public


def _networks(*texts: str) -> tuple[IPNetwork, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# IANA's special-purpose registries as of 2026, written out: what `ipaddress` calls global differs between Python's releases.
_PRIVATE = _networks(
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "::1/128", "fc00::/7"
)
"""What an operator may open, range by range."""
_NEVER = _networks(
    *("169.254.0.0/16", "fe80::/10", "fec0::/10"),  # link-local, site-local: cloud metadata lives here
    *("100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128"),  # metadata elsewhere
    *("168.63.129.16/32",),  # the platform's own address in one cloud, reachable from within only
    *("0.0.0.0/8", "::/128", "224.0.0.0/4", "ff00::/8", "240.0.0.0/4"),  # unspecified, multicast, reserved, broadcast
)
"""What nobody can open."""
_RESERVED = _networks(
    *("192.0.0.0/24", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "192.88.99.0/24"),
    *("192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"),
    *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48"),  # Teredo, examples, 6to4
)
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")
"""All unicast that has been given out: IPv4-mapped, IPv4-compatible, NAT64 and the like lie outside of it."""


@dataclass(frozen=True, slots=True)
class TargetPolicy:
    """What the operator allows beyond the public internet."""

    ports: tuple[int, ...] = DEFAULT_PORTS
    """Empty: any."""
    private_networks: tuple[IPNetwork, ...] = ()


ANY_TARGET = TargetPolicy(ports=(), private_networks=_PRIVATE)
"""For reading an address whose use is judged elsewhere."""


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL, taken apart; what is connected to is made of these parts alone."""

    scheme: str
    host: str
    """ASCII, lower case, without a trailing dot; an IP address without brackets."""
    port: int
    path: str
    """With the query, as it is sent."""

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": 443, "http": 80}[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port, written in the one way by which origins are compared."""
        return f"{self.scheme}://{self.authority}"


def parse_private_networks(texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """The ranges that an operator opens. Raises `ValueError` for one that is no private range."""
    found = []
    for text in texts:
        network = ipaddress.ip_network(text.strip())
        if not any(_within(network, private) for private in _PRIVATE):
            raise ValueError(f"{text} is no private range; ranges lie within {', '.join(map(str, _PRIVATE))}")
        found.append(network)
    return tuple(found)


def parse_target(url: str, policy: TargetPolicy, *, allow_insecure: bool) -> Target:
    """Take a URL apart and check all that can be seen without asking anybody. Raises `UrlRefused`."""
    if len(url) > MOST_URL_CHARS:
        raise UrlRefused("too_long", f"The URL has more than {MOST_URL_CHARS:,} characters.")
    if re.search(r"[\x00-\x20\x7f\\]", url) or any(character.isspace() for character in url):
        raise UrlRefused("malformed", "The URL holds blanks, control characters or backslashes.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise UrlRefused("malformed", "The URL cannot be read.") from None
    _check_scheme(parts.scheme, policy, allow_insecure=allow_insecure)
    if "@" in parts.netloc:
        raise UrlRefused("userinfo", "The URL holds a user name or password. Leave it out; requests are signed.")
    if parts.fragment:
        raise UrlRefused("malformed", "The URL has a fragment (`#…`), which is never sent.")
    host = _plain_host(parts.hostname or "")
    port = port if port is not None else {"https": 443, "http": 80}[parts.scheme]
    if policy.ports and port not in policy.ports:
        allowed = ", ".join(map(str, policy.ports))
        raise UrlRefused("port", f"The port {port} is not allowed; allowed are {allowed}.")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = f"?{quote(parts.query, safe='/?%:@!$&()*+,;=~-._')}" if parts.query else ""
    target = Target(parts.scheme, host, port, path + query)
    literal = _literal(host)
    if literal is not None:
        check_addresses([str(literal)], policy)
    return target


def _check_scheme(scheme: str, policy: TargetPolicy, *, allow_insecure: bool) -> None:
    if scheme == "https":
        return
    if scheme == "http" and allow_insecure and policy.private_networks:
        return
    if scheme == "http":
        raise UrlRefused(
            "scheme",
            "The URL must begin with https://. Plain http is for private networks that the operator has opened, and only "
            "with `allow_insecure`.",
        )
    raise UrlRefused("scheme", "The URL must begin with https://.")


_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


def _plain_host(host: str) -> str:
    """The host in the one spelling that is connected to. Raises `UrlRefused` for any that could mean something else."""
    if not host or "%" in host:
        raise UrlRefused("host", "The URL's host is missing or written in an unusual way.")
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise UrlRefused("host", "The URL's host is no IPv6 address.") from None
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True, transitional=False).decode("ascii")
        except idna.IDNAError:
            raise UrlRefused("host", "The URL's host is no name of the internet.") from None
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UrlRefused("host", "The URL's host is no name of the internet.")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:  # 127.1, 2130706433, 0x7f000001, 0177.0.0.1: resolvers take them for addresses
            raise UrlRefused("host", "The URL's host is an IP address in an unusual spelling.") from None
    return host


def _literal(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def check_addresses(addresses: Sequence[str], policy: TargetPolicy) -> tuple[str, ...]:
    """The addresses in plain spelling, if every single one may be connected to. Raises `UrlRefused`."""
    if not addresses:
        raise UrlRefused("no_address", "The URL's host has no address.")
    checked = []
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise UrlRefused("address", "The URL's host resolves to something that is no address.") from None
        if not _is_allowed(address, policy):
            raise UrlRefused(
                "address",
                "The URL's host is, or resolves to, an address that is not on the public internet. "
                "Private networks are opened by the operator.",
            )
        checked.append(str(address))
    return tuple(dict.fromkeys(checked))


def _is_allowed(address: IPAddress, policy: TargetPolicy) -> bool:
    if _is_in(address, _NEVER) or getattr(address, "scope_id", None):
        return False
    if _is_in(address, policy.private_networks):
        return True
    if _is_in(address, _PRIVATE) or _is_in(address, _RESERVED):
        return False
    return address.version == 4 or address in _GLOBAL_V6


def _is_in(address: IPAddress, networks: Iterable[IPNetwork]) -> bool:
    return any(address in network for network in networks)


def _within(network: IPNetwork, other: IPNetwork) -> bool:
    if isinstance(network, ipaddress.IPv4Network):
        return isinstance(other, ipaddress.IPv4Network) and network.subnet_of(other)
    return isinstance(other, ipaddress.IPv6Network) and network.subnet_of(other)


def parse_origin(text: str, policy: TargetPolicy) -> str:
    """An origin such as `https://hooks.example.com` in its one spelling. Raises `UrlRefused`."""
    target = parse_target(text, policy, allow_insecure=True)
    if target.path != "/":
        raise UrlRefused("origin", "An origin is scheme, host and port only, such as https://hooks.example.com.")
    return target.origin
