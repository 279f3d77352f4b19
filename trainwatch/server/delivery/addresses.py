"""Whom a message may reach: public addresses only, so that nobody can make the server talk to what is inside with it.

A name is resolved once, its addresses are checked, and the connection is made to the address that was checked. A name
that answers differently the second time (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All that is given out of IPv6; what lies outside is local, or an IPv4 address in disguise."""
_REFUSED: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        # They carry an IPv4 address inside, which some router may take out again.
        *("2002::/16", "2001::/32", "192.88.99.0/24"),
        "3fff::/20",  # for documentation
        "192.0.0.0/24",  # between a customer and the provider; newer versions of Python know
        "168.63.129.16/32",  # Azure's own services, inside of every virtual machine
    )
)


class Forbidden(Exception):
    """The address is not public, and the server's settings do not allow it. The message says which."""


class Guard:
    """Decides which addresses may be reached.

    Args:
        allowed: Names, addresses and networks that may be reached although they are not public.

    Raises:
        ValueError: Something allowed is neither a name nor an address nor a network.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for text in allowed:
            try:
                self._networks.append(ipaddress.ip_network(text.strip().strip("[]"), strict=False))
            except ValueError:
                name = _normal(text)
                if not name or "/" in name or ":" in name or " " in name:
                    raise ValueError(f"{text!r} is neither a name nor an address nor a network") from None
                self._names.add(name)

    def resolve(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a host, in the order in which to try them. All of them may be reached.

        Args:
            host: A name or an address, in any spelling that the system's resolver takes.
            port: The port.

        Raises:
            Forbidden: One of the addresses may not be reached.
            OSError: The name cannot be resolved.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if _normal(host) not in self._names:
            for address in addresses:
                self.check(address)
        return addresses

    def check(self, address: str) -> None:
        """Checks one address, as the system's resolver spells it.

        Raises:
            Forbidden: It may not be reached.
        """
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        if not (is_public(parsed) or any(parsed in network for network in self._networks)):
            raise Forbidden(
                f"{parsed} is not a public address; TRAINWATCH_ALERT_PRIVATE_HOSTS names what may be reached besides"
            )

    def addresses_of_names(self) -> list[str]:
        """Returns the networks allowed, and the present addresses of the names allowed."""
        found = [str(network) for network in self._networks]
        for name in sorted(self._names):
            try:
                found += [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
            except OSError:  # what has no address now cannot be reached either
                continue
        return found


def is_public(address: Address) -> bool:
    """Tells whether an address belongs to the internet at large."""
    if address.is_multicast or not address.is_global:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    return not any(address in network for network in _REFUSED if network.version == address.version)


def _normal(host: str) -> str:
    return host.strip().strip("[]").rstrip(".").lower()
