"""KafkaAccess: TLS and the user of the connections to Kafka."""

import ssl
from dataclasses import dataclass, field
from typing import Any, final

from flowguard.errors import ConfigError
from flowguard.kafka_settings import KafkaSettings


@final
@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """By default without TLS, and without a user."""

    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for a client of the driver."""
        plain = "PLAINTEXT" if self.tls is None else "SSL"
        if not self.user:
            return {"security_protocol": plain, "ssl_context": self.tls}
        return {
            "security_protocol": f"SASL_{plain}",
            "ssl_context": self.tls,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


NOBODY = KafkaAccess()


def access_of(settings: KafkaSettings) -> KafkaAccess:
    """Return the access that is configured; reads the files in it. Raises ConfigError."""
    tls, password = None, ""
    if settings.tls:
        tls = _context(settings)
    if settings.password_file is not None:
        path = settings.password_file
        try:
            password = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"kafka.password_file: cannot read {path}: {error}") from error
        if not password:
            raise ConfigError(f"kafka.password_file: {path} has to begin with the password")
    return KafkaAccess(tls, settings.user or "", password, settings.mechanism)


def _context(settings: KafkaSettings) -> ssl.SSLContext:
    authority, cert, key = (
        settings.tls_authority_file,
        settings.tls_cert_file,
        settings.tls_key_file,
    )
    try:
        context = ssl.create_default_context(cafile=authority)
    except OSError as error:  # Includes ssl.SSLError.
        raise ConfigError(f"kafka.tls_authority_file: cannot use {authority}: {error}") from error
    if cert is not None:
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"kafka.tls_cert_file: cannot use {cert} with its key: {error}"
            ) from error
    return context


def _no_password() -> str:
    """Raise an error instead of waiting for a password from the terminal."""
    raise ValueError("its key has a password: give one without")
