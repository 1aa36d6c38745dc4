"""The address that a server is bound to."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from qpdsl.errors import UsageError, reason

# Connections that wait to be accepted while the engine computes a step.
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class BindAddress:
    """Where the server listens: a port of 0 is any that is free. `certificate` and `key` are PEM files, for TLS."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None

    @property
    def local(self) -> bool:
        """Whether only programs of this machine reach it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def bound(self) -> socket.socket:
        """A socket that is bound there. Raises UsageError, also where the files for TLS are none."""
        self._check_tls()
        try:
            family = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][0]
            bound = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
            # Connections inherit it. Without it what follows a first packet waits for the client's acknowledgement.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return bound
        except (OSError, OverflowError, UnicodeError) as error:
            busy = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            help = "`--port 0` takes any port that is free" if busy else None
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise UsageError(f"cannot listen at {self.host}:{self.port}: {why}", help) from error

    def url(self, bound: socket.socket) -> str:
        """The address that clients take as `base_url`."""
        host, port = bound.getsockname()[:2]
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def _check_tls(self) -> None:
        if self.certificate is None:
            return
        try:
            # Without a password the library would ask for one on the terminal.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key, self.key_password or ""
            )
        except FileNotFoundError as error:
            missing = [file for file in (self.certificate, self.key) if file is not None and not Path(file).is_file()]
            raise UsageError(f"there is no file `{(missing or [self.certificate])[0]}`") from error
        except (OSError, ValueError) as error:
            files = "`--tls-cert`" if self.key is None else "`--tls-cert` and `--tls-key`"
            raise UsageError(f"{files} cannot be used: {getattr(error, 'reason', None) or error}") from error
