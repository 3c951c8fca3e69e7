"""Access: the layers that clients speak, and the users as which they connect."""

import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Self, final

from flowguard.address import Scheme
from flowguard.errors import ConfigError

NUMBER: Final = "{n}"
"""Replaced by the number of the client, from 0, in the name of a user and in a password."""
PATH: Final = "/mqtt"


@final
class User(NamedTuple):
    name: str | None = None
    password: str | None = None

    def of(self, number: int) -> "User":
        """Return the user of this client."""
        return User(*(text and text.replace(NUMBER, str(number)) for text in self))


NOBODY: Final = User()


@final
@dataclass(frozen=True, slots=True)
class ClientAccess:
    scheme: Scheme = Scheme.MQTT
    path: str = PATH
    """The path of a WebSocket."""
    cafile: str | None = None
    """Certificates that sign the broker's, or None for those of the system."""
    cert: str | None = None
    key: str | None = None
    users: tuple[User, ...] = (NOBODY,)
    """Clients are these users in turn."""

    def user(self, number: int) -> User:
        return self.users[number % len(self.users)].of(number)

    @property
    def has_many_users(self) -> bool:
        return len(self.users) > 1 or NUMBER in f"{self.users[0].name}{self.users[0].password}"

    def context(self) -> ssl.SSLContext | None:
        """Return what TLS needs, or None without TLS. Raises ConfigError."""
        if not self.scheme.has_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.cafile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--cafile {self.cafile}: {_why(error)}") from error
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except (OSError, ssl.SSLError) as error:
                key = "" if self.key is None else f" --key {self.key}"
                raise ConfigError(f"--cert {self.cert}{key}: {_why(error)}") from error
        return context

    def values(self) -> dict[str, Any]:
        """Return it as plain values, for another process."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        users = tuple(User(*user) for user in values["users"])
        return cls(**{**values, "scheme": Scheme(values["scheme"]), "users": users})


PLAIN: Final = ClientAccess()
"""Plain TCP without a user."""


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate or key in PEM form that fits ({error.reason or error})"
    return error.strerror or str(error)
