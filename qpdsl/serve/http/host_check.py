"""Which names a server may be asked by (DNS rebinding).

A web page can give its own name the address 127.0.0.1, and then the browser lets it read what a server there answers.
But the browser sends the page's name as `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from qpdsl.errors import shorten
from qpdsl.serve.completion_request import Refusal

_HOST = re.compile(r"(?:\[(?P<address>[^]]+)\]|(?P<name>[^][:]+))(?::[0-9]*)?")


@dataclass(frozen=True, slots=True)
class HostCheck:
    """Takes requests to a loopback address, to `localhost` and to these names; where `names` is None, to any."""

    names: frozenset[str] | None

    @classmethod
    def any(cls) -> HostCheck:
        return cls(None)

    @classmethod
    def of(cls, names: Iterable[str]) -> HostCheck:
        return cls(frozenset(_name(name) for name in names))

    def check(self, host: str) -> None:
        """Raises Refusal for a `Host` that is none of those."""
        name = _name(host)
        if self.names is None or name in self.names or name == "localhost" or _is_loopback(name):
            return
        message = f"this server does not answer to the name `{shorten(name)}`; `--allow-host` lets it"
        raise Refusal(message, status=421, code="wrong_host")


def _name(host: str) -> str:
    """A host without its port, in lower case; as it is where it is none."""
    host = host.strip().lower()
    found = _HOST.fullmatch(host)
    return host if found is None else (found["address"] or found["name"]).rstrip(".")


def _is_loopback(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
