"""Doors: what of a running broker is read anew at SIGHUP: certificates and users."""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from flowguard.broker.doorway import Doorway
from flowguard.broker.server import unix_clock
from flowguard.cli.plugins import needs_extra
from flowguard.config import NetworkSettings
from flowguard.errors import ConfigError

if TYPE_CHECKING:
    from flowguard.broker.password_checks import PasswordChecks

KEY_BYTES: Final = 32

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Doors:
    """Listeners, and who asks clients for a password."""

    network: NetworkSettings
    doorways: list[Doorway]
    checks: "PasswordChecks | None"

    def reload(self) -> None:
        """Read certificates and users anew; where one of them is wrong, nothing changes."""
        try:
            contexts = [(each.tls, each.tls.read()) for each in self.doorways if each.tls]
            users = None if self.checks is None else self.checks.read()
        except ConfigError as error:
            log.error("nothing was read anew, and nothing has changed", why=str(error))
            return
        for keeper, context in contexts:
            keeper.use(context)
        if self.checks is not None and users is not None:
            self.checks.use(users)
        log.info(
            "certificates and users were read anew; settings are read at the start only",
            certificates=len(contexts),
            users=0 if users is None else len(users.hashes),
        )


def checks_of(network: NetworkSettings) -> "PasswordChecks | None":
    """The checks that the settings ask for; None: whoever comes may. Raises ConfigError."""
    if network.password_file is None and network.allow_anonymous is not False:
        return None
    try:
        # Here, because it needs argon2, which only who has users has to have.
        from flowguard.broker.password_checks import PasswordChecks
    except ModuleNotFoundError as error:
        raise ConfigError(f"network.password_file {needs_extra('passwords')}") from error
    return PasswordChecks(
        network.password_file,
        secrets.token_bytes(KEY_BYTES),
        unix_clock(),
        anonymous=bool(network.allow_anonymous),
    )
