"""The files that a running broker reads again at SIGHUP: certificates, users, keys, rules."""

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from flowguard.access.mosquitto import parse_acl
from flowguard.access.rules import Rules
from flowguard.access.rules_toml import parse_toml
from flowguard.app.extras import needs_extra
from flowguard.broker.layers.certificates import expired, expiries
from flowguard.broker.server import unix_clock
from flowguard.broker.sockets.listening import Doorway
from flowguard.config import Settings
from flowguard.errors import ConfigError, UnreadyError
from flowguard.lines import read, text_of
from flowguard.network_settings import ClusterSettings, NetworkSettings
from flowguard.node.node import Node

if TYPE_CHECKING:
    from flowguard.broker.identity.identity_checks import IdentityChecks, Proofs
    from flowguard.broker.workers.node_tls import NodeTls
    from flowguard.ops.web.reload import Reloaded

KEY_BYTES: Final = 32
TOKEN_BYTES_MIN: Final = 16
LOG_NAMES: Final = {"keys": "token_keys"}
"""Name in the answer to a reload -> its name in the log."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Read:
    settings: Settings
    uses: list[Callable[[], None]]
    """Let certificates be used, one each."""
    proofs: "Proofs | None"
    rules: Rules | None


@dataclass(frozen=True, slots=True)
class ReloadableFiles:
    """Certificates of listeners, users and keys of identity checks, and rules."""

    settings: Settings
    doorways: list[Doorway]
    checks: "IdentityChecks | None"
    read_settings: Callable[[], Settings]
    """Reads the settings as they are now; raises ConfigError."""
    workers_count: int = 1
    """Number of workers that share the limits of roles."""
    node_tls: "NodeTls | None" = None
    _reloading: trio.Lock = field(default_factory=trio.Lock)
    """Held while files are read, which are read once at a time."""

    def expiries(self) -> dict[str, float]:
        """Return the Unix time at which each file with certificates expires."""
        return expiries(self.settings.network, self.settings.cluster)

    async def reload(self, node: Node) -> "Reloaded":
        """Read certificates, users, keys and rules again, and log the result. After a ConfigError
        nothing has changed.
        """
        try:
            read = await self._reload(node)
        except ConfigError as error:
            why = str(error).replace("\n", "; ")
            log.error("reload failed; nothing has changed", why=why)
            raise
        warn_of_expired(self.settings.network, self.settings.cluster)
        node.door.certificates = self.expiries()
        shown = {LOG_NAMES.get(name, name): value for name, value in read.items() if value}
        log.info("reloaded certificates, users, keys and rules", **shown)
        return read

    async def reload_on_signal(self, node: Node) -> None:
        """Reload; errors are only logged."""
        with suppress(ConfigError):
            await self.reload(node)

    async def _reload(self, node: Node) -> "Reloaded":
        """Read everything and use it, or raise ConfigError.

        In a thread: to read 100,000 users takes most of a second, and a file may not answer at all.
        """
        if self._reloading.locked():
            raise ConfigError("a reload is already running: repeat it later")
        async with self._reloading:
            read = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            return self._use(read, node)

    def _read(self) -> _Read:
        uses: list[Callable[[], None]] = [
            partial(each.tls.use, each.tls.read()) for each in self.doorways if each.tls
        ]
        if self.node_tls is not None:
            uses.append(partial(self.node_tls.use, self.node_tls.read()))
        return _Read(
            self.read_settings(),
            uses,
            None if self.checks is None else self.checks.read(),
            rules_of(self.settings.network, self.workers_count),
        )

    def _use(self, read: _Read, node: Node) -> "Reloaded":
        proofs, rules = read.proofs, read.rules
        for use in read.uses:
            use()
        if self.checks is not None and proofs is not None:
            self.checks.use(proofs)
        if rules is not None:
            node.use_rules(rules, node.started_s)
        return {
            "certificates": len(read.uses),
            "users": 0 if proofs is None or proofs.users is None else len(proofs.users.hashes),
            "keys": 0 if proofs is None or proofs.tokens is None else len(proofs.tokens.keys),
            "roles": 0 if rules is None else len(rules),
            "needs_restart": differences(self.settings, read.settings),
        }


def warn_of_expired(network: NetworkSettings, cluster: ClusterSettings | None = None) -> None:
    """Log the certificates that have expired: they are used all the same."""
    for why in expired(network, time.time(), cluster):
        log.warning("certificate expired", why=why)


def differences(one: Settings, other: Settings) -> list[str]:
    """The keys of settings that are not the same in both."""
    before, now = one.model_dump(), other.model_dump()
    return [
        f"{section}.{key}"
        for section, values in before.items()
        for key, value in values.items()
        if now[section][key] != value
    ]


def checks_of(network: NetworkSettings) -> "IdentityChecks | None":
    """Make the checks that the settings ask for; none if any client may connect.

    Raises ConfigError.
    """
    may_come = not network.asks
    if may_come and network.acl_file is None:
        return None
    from flowguard.broker.identity.identity_checks import IdentityChecks

    try:
        return IdentityChecks(
            network,
            secrets.token_bytes(KEY_BYTES),
            unix_clock(),
            anonymous=may_come or bool(network.allow_anonymous),
        )
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        key, extra = (
            ("password_file", "passwords") if missing == "argon2" else ("token_keys", "jwt")
        )
        raise UnreadyError(f"network.{key} {needs_extra(extra)}") from error


def rules_of(network: NetworkSettings, workers_count: int = 1) -> Rules | None:
    """Read the rules that the settings name, if any, as each worker has them.

    Raises ConfigError.
    """
    path = network.acl_file
    if path is not None:
        if network.allow_all_topics:
            raise ConfigError(
                "network.acl_file has rules, and network.allow_all_topics asks for none: "
                "leave one of them out"
            )
        rules = read_rules(path)
        rules.divide(workers_count)
        return rules
    if (network.asks or network.takes_certificates) and not network.allow_all_topics:
        raise ConfigError(
            "clients authenticate, but there are no rules for topics: "
            "use --acl FILE, or --allow-all-topics if every user may use every topic"
        )
    return None


def read_rules(path: Path) -> Rules:
    """Read rules, from TOML or from Mosquitto's ACL file. Raises ConfigError."""
    parse = parse_toml if path.suffix == ".toml" else parse_acl
    return parse(text_of(read(path), str(path)), str(path))


def read_token(path: Path | None) -> bytes | None:
    """Read the token in the first line of a file, if one is named. Raises ConfigError."""
    if path is None:
        return None
    try:
        token = path.read_bytes().partition(b"\n")[0].strip()
    except OSError as error:
        raise ConfigError(f"http.token_file: cannot read {path}: {error.strerror}") from error
    if len(token) < TOKEN_BYTES_MIN:
        raise ConfigError(
            f"http.token_file: {path} has to begin with a line of {TOKEN_BYTES_MIN} bytes at least"
        )
    return token
