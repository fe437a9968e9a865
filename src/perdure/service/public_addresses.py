"""Which IP addresses a webhook may reach.

The lists are ours, because Python's `is_private` and `is_global` differ by patch release. They hold
IANA's special-purpose registries of IPv4 and IPv6, multicast, and the metadata services of clouds,
which give credentials to every caller. An IPv6 address that contains an IPv4 address may reach it
through a translator or a tunnel, so both are checked.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from perdure.errors import BadArgument

Private = bool | Sequence[str]
"""Which addresses are allowed that are not public: none, all but metadata, or these networks."""
EVERYWHERE = ("0.0.0.0/0", "::/0")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(texts: str) -> tuple[_Network, ...]:
    return tuple(map(ipaddress.ip_network, texts.split()))


_METADATA = _networks(
    # Amazon, Google, Azure, Oracle, DigitalOcean and others; containers on Amazon
    "169.254.169.254 169.254.170.2 169.254.170.23 fd00:ec2::254 fd00:ec2::23 fd20:ce::254 "
    # Alibaba, Azure, Oracle, Scaleway
    "100.100.100.200 168.63.129.16 192.0.0.192 169.254.42.42 fd00:42::42"
)
_SPECIAL_IPV4 = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 "
    "198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""The only part of IPv6 from which public addresses are assigned."""
_SPECIAL_IPV6 = _networks("2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20")
"""The exceptions in it: Teredo and other protocols, documentation, 6to4, AS112."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def as_address(host: str) -> str | None:
    """The IP address that a host is, in any notation: `127.1`, `2130706433`, `0x7f.0.0.1`."""
    try:
        return str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except OSError:
        pass
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        return None


def check_networks(private: Private) -> None:
    """Refuse networks that are not written as such. Raises `BadArgument`."""
    if isinstance(private, bool):
        return
    try:
        if isinstance(private, str):
            raise ValueError(f"{private!r} is one text")
        for one in private:
            ipaddress.ip_network(one)
    except ValueError as error:
        raise BadArgument(
            f"allow_private must be True, or a list of networks such as 10.0.0.0/8: {error}."
        ) from None


def is_allowed(address: str, private: Private) -> bool:
    """Whether a webhook may go to an IP address. A metadata service must be named in `private`."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if _is_public(found):
        return True
    if isinstance(private, bool):
        return private and not any(_is_in(one, _METADATA) for one in (found, *_embedded(found)))
    if isinstance(found, ipaddress.IPv6Address) and found in _MAPPED:
        found = _low(found)
    return _is_in(found, tuple(map(ipaddress.ip_network, private)))


def _is_public(found: _Address) -> bool:
    if isinstance(found, ipaddress.IPv4Address):
        return not _is_in(found, _SPECIAL_IPV4 + _METADATA)
    if found in _MAPPED or found in _NAT64:  # networks without IPv4 translate each public address
        return _is_public(_low(found))
    if found not in _UNICAST or _is_in(found, _SPECIAL_IPV6):
        return False
    return all(map(_is_public, _embedded(found)))


def _embedded(found: _Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address may lead to."""
    if isinstance(found, ipaddress.IPv4Address):
        return []
    bits = int(found)
    inner: list[int] = []
    if found in _MAPPED or found in _NAT64 or bits < 1 << 32:
        inner = [bits]
    elif found in _LOCAL_NAT64:  # RFC 6052: after 48, 56, 64 or 96 bits, around bits 64 to 71
        inner = [
            bits >> 48 & 0xFFFF0000 | bits >> 40 & 0xFFFF,
            bits >> 40 & 0xFF000000 | bits >> 32 & 0xFFFFFF,
            bits >> 24,
            bits,
        ]
    elif bits >> 112 == 0x2002:  # 6to4
        inner = [bits >> 80]
    elif bits >> 96 == 0x20010000:  # Teredo: the server, and the client with its bits inverted
        inner = [bits >> 64, ~bits]
    elif bits >> 32 & 0xFDFFFFFF == 0x5EFE:  # ISATAP
        inner = [bits]
    return [ipaddress.IPv4Address(one & 0xFFFFFFFF) for one in inner]


def _low(found: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)


def _is_in(found: _Address, networks: tuple[_Network, ...]) -> bool:
    return any(found in network for network in networks)
