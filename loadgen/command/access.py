"""The users, certificates and layers of a storm's clients, from its options."""

import os
from pathlib import Path
from typing import Final

from flowguard.address import Address
from flowguard.errors import ConfigError
from flowguard.lines import lines_of, read, text_of
from loadgen.storm.access import PATH, ClientAccess, User

PASSWORD: Final = "STORM_PASSWORD"
"""The environment variable with the password, if there is no --password-file."""


def access_of(
    user: str | None,
    password_file: Path | None,
    users: Path | None,
    cafile: Path | None,
    cert: Path | None,
    key: Path | None,
    address: str,
) -> tuple[Address, ClientAccess]:
    """Return the broker's address, and how clients connect to it. Raises ConfigError."""
    name, slashes, place = address.partition("://")
    place, slash, path = place.partition("/")
    where = Address.parse(f"{name}{slashes}{place}")
    if where.port is None:
        raise ConfigError(f"{address}: expected HOST:PORT, not a Unix socket")
    if slash and path and not where.scheme.has_websocket:
        raise ConfigError(f"{address}: only ws:// and wss:// have a path")
    if (cafile or cert or key) and not where.scheme.has_tls:
        raise ConfigError(f"{address}: certificates need mqtts:// or wss://")
    if key and not cert:
        raise ConfigError("--key needs --cert")
    if users and (user is not None or password_file):
        raise ConfigError("--users cannot be used with --user or --password-file")
    of_users = _users(users) if users else (User(user, _password(user, password_file)),)
    ca_text, cert_text, key_text = (str(f) if f else None for f in (cafile, cert, key))
    path = f"/{path}" if path else PATH
    access = ClientAccess(where.scheme, path, ca_text, cert_text, key_text, of_users)
    access.context()  # Check the files.
    if where.scheme.has_websocket:
        _require_websockets(address)
    return where, access


def _password(user: str | None, file: Path | None) -> str | None:
    if user is None:
        if file:
            raise ConfigError("--password-file needs --user")
        return None
    if file is None:
        return os.environ.get(PASSWORD)
    password = lines_of(text_of(read(file), str(file)))[0]
    if not password:
        raise ConfigError(f"{file}: expected a password in the first line")
    return password


def _users(file: Path) -> tuple[User, ...]:
    users = []
    for number, line in enumerate(lines_of(text_of(read(file), str(file))), 1):
        name, colon, password = line.partition(":")
        if line and not (name and colon):
            raise ConfigError(f"{file}: line {number}: expected NAME:PASSWORD")
        if line:
            users.append(User(name, password))
    if not users:
        raise ConfigError(f"{file}: expected a line NAME:PASSWORD for each user")
    return tuple(users)


def _require_websockets(address: str) -> None:
    try:
        import websockets.client  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{address}: WebSocket needs the package websockets; install it, for example with: "
            "pip install 'flowguard-mqtt[websockets]'"
        ) from error
