"""Section `network` of the settings: where to listen, and how clients prove who they are."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, IPvAnyNetwork, field_validator, model_validator

from flowguard.address import Address
from flowguard.errors import ConfigError
from flowguard.section import Section


class NamedCertificate(Section):
    """A certificate for clients that ask for this name (SNI)."""

    server_name: str
    """As in `mqtt.example`, or `*.example` for all names directly below it."""
    cert: Path
    key: Path

    @field_validator("server_name")
    @classmethod
    def _plain(cls, name: str) -> str:
        labels = name.lower().removesuffix(".").removeprefix("*.").split(".")
        if not all([re.fullmatch(r"[a-z0-9_-]+", label) for label in labels]):
            raise ValueError(f"{name!r}: expected a name, as mqtt.example or *.example")
        return name.lower().removesuffix(".")


class ListenerSettings(Section):
    """An address that clients reach; what is absent is as section `network` has it."""

    address: str
    """Where, and what is between the socket and MQTT: `mqtts://0.0.0.0:8883`."""
    cert: Path | None = None
    key: Path | None = None
    certs: tuple[NamedCertificate, ...] = ()
    """Other certificates, for clients that ask for their names."""
    chain: Path | None = None
    """Authorities between `cert` and its root that clients are sent, if `cert` lacks them, PEM."""
    client_ca: Path | None = None
    crl: Path | None = None
    password_is: Literal["password", "token"] | None = None
    connections_max: int | None = Field(None, ge=1)
    """Connections through this listener; beyond it who comes waits in the kernel."""

    proxies: tuple[IPvAnyNetwork, ...] = ()
    """Proxies that say whose a connection is, by PROXY protocol v2; others are closed."""
    ipv6_only: bool = False
    """Whether `[::]` takes no IPv4 clients."""

    @field_validator("certs")
    @classmethod
    def _named_once(cls, certs: tuple[NamedCertificate, ...]) -> tuple[NamedCertificate, ...]:
        names = [each.server_name for each in certs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} has more than one certificate")
        return certs

    @field_validator("proxies", mode="before")
    @classmethod
    def _listed(cls, values: object) -> object:
        """One as a text, too: `10.0.0.0/8`."""
        return values.replace(",", " ").split() if isinstance(values, str) else values

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: object) -> object:
        """A listener that is a text is an address, and nothing else is said of it."""
        return {"address": values} if isinstance(values, str) else values

    @field_validator("address")
    @classmethod
    def _parsed(cls, text: str) -> str:
        try:
            return str(Address.parse(text))
        except ConfigError as error:
            raise ValueError(str(error)) from error


class NetworkSettings(Section):
    """Listeners, and the certificates of those that name none of their own (docs/security.md)."""

    listeners: tuple[ListenerSettings, ...] = ()
    """Addresses to listen on, each a text or a table with its own certificate and limit; none:
    127.0.0.1:1883."""
    cert: Path | None = None
    """Certificate of the broker with those between it and the authority, PEM."""
    key: Path | None = None
    """Private key of the certificate, not encrypted, PEM."""
    client_ca: Path | None = None
    """Authorities one of which must have signed a client's certificate, PEM; absent: clients need
    none."""
    crl: Path | None = None
    """Certificates that these authorities have revoked, PEM."""
    tls_version_min: Literal["1.2", "1.3"] = "1.2"
    """Oldest TLS that is spoken."""
    password_file: Path | None = None
    """Users with hashes of their passwords; absent: nobody is asked for one."""
    token_keys: Path | None = None
    """Keys of signed tokens (JWT), public ones in PEM or a JSON Web Key Set; absent: there are no
    tokens."""
    token_audience: str | None = None
    """Who tokens must be for, their `aud`; `token_keys` needs it."""
    token_issuer: str | None = None
    """Who must have made them, their `iss`; absent: whoever has a key."""
    token_roles_claim: str = "roles"
    """The claim that names roles, besides those that the rules give to its user."""
    password_is: Literal["password", "token"] | None = None
    """What the password of a CONNECT is, where a listener does not say; absent: a token where there
    are keys, and no users."""
    acl_file: Path | None = None
    """Rules, who may publish and receive what: TOML where it ends in `.toml`, else an ACL file of
    Mosquitto; absent: everybody everything, which `allow_all_topics` has to say where there are
    identities."""
    allow_all_topics: bool = False
    """Whether clients that have proved who they are may do everything, for want of rules."""
    allow_anonymous: bool | None = None
    """Whether clients without a user name may connect; absent: only where there are no users."""
    allow_plaintext: bool = False
    """Whether listeners that other machines reach may speak without TLS."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect by WebSocket, as in `https://shop.example`, or `*`, besides those
    from the broker's own address."""

    @field_validator("listeners", "origins", mode="before")
    @classmethod
    def _listed(cls, values: object) -> object:
        """Several in one text, as an environment variable has them: `a:1883,mqtts://b:8883`."""
        return values.replace(",", " ").split() if isinstance(values, str) else values

    @field_validator("listeners")
    @classmethod
    def _each_once(cls, listeners: tuple[ListenerSettings, ...]) -> tuple[ListenerSettings, ...]:
        """No two of one place, whatever is spoken there; port 0 is another one each time."""
        places = [Address.parse(each.address) for each in listeners]
        taken = [place.place for place in places if place.port != 0]
        for place in taken:
            if taken.count(place) > 1:
                raise ValueError(f"{place} is listed more than once")
        return listeners

    @property
    def proof(self) -> str:
        """The kind of proof that the password of a CONNECT is, `password` or `token`."""
        only_tokens = self.token_keys is not None and self.password_file is None
        return self.password_is or ("token" if only_tokens else "password")

    @property
    def asks(self) -> bool:
        """Whether clients have to prove who they are, by other things than a certificate."""
        files = (self.password_file, self.token_keys)
        return any([file is not None for file in files]) or self.allow_anonymous is False

    @model_validator(mode="after")
    def _proofs(self) -> Self:
        if (self.token_keys is None) is not (self.token_audience is None):
            raise ValueError(
                "network.token_keys and network.token_audience go together: a token for another "
                "audience proves nothing here"
            )
        files = {"password": self.password_file, "token": self.token_keys}
        for wanted in (self.password_is, *[each.password_is for each in self.listeners]):
            if wanted is not None and files[wanted] is None:
                key = "password_file" if wanted == "password" else "token_keys"
                raise ValueError(f'password_is = "{wanted}" needs network.{key}')
        return self

    @field_validator("origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/*]+/?", origin):
                raise ValueError(f"{origin!r}: expected https://shop.example, or *")
        return tuple(origin.lower().removesuffix("/") for origin in origins)
