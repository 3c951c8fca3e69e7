"""Sections `network` and `http` of the settings: listeners, proofs of identity, the HTTP port."""

import re
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, IPvAnyNetwork, field_validator, model_validator

from flowguard.address import PORT_MAX, Address, parse_address
from flowguard.errors import ConfigError
from flowguard.section import LISTED, Section

HTTP_NONE: Final = "none"
"""Value of `http.address` for no port."""


SHARDS_MAX: Final = 256
PORTS_PER_SHARD: Final = 2
"""One for links, one for clients that another node has accepted."""


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
    """Address with its transport: `mqtts://0.0.0.0:8883`."""
    cert: Path | None = None
    key: Path | None = None
    certs: tuple[NamedCertificate, ...] = ()
    """Other certificates, for clients that request their names."""
    chain: Path | None = None
    """Intermediate certificates to send to clients, if `cert` lacks them, PEM."""
    client_ca: Path | None = None
    crl: Path | None = None
    password_is: Literal["password", "token"] | None = None
    connections_max: int | None = Field(None, ge=1)
    """Maximum number of connections through this listener; further ones stay in the listen
    backlog."""

    proxies: Annotated[tuple[IPvAnyNetwork, ...], LISTED] = ()
    """Proxies that send the client's address by PROXY protocol; other connections are closed."""
    proxies_check_certificates: bool = False
    """Take the name in a client's certificate from these proxies, which end TLS."""
    ipv6_only: bool = False
    """Exclude IPv4 clients from `[::]`."""

    @model_validator(mode="after")
    def _checked_once(self) -> Self:
        if self.proxies_check_certificates and not self.proxies:
            raise ValueError("proxies_check_certificates needs network addresses in proxies")
        if self.proxies_check_certificates and Address.parse(self.address).scheme.has_tls:
            raise ValueError("proxies_check_certificates is for listeners without TLS")
        return self

    @field_validator("certs")
    @classmethod
    def _named_once(cls, certs: tuple[NamedCertificate, ...]) -> tuple[NamedCertificate, ...]:
        names = [each.server_name for each in certs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} has more than one certificate")
        return certs

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: object) -> object:
        """Read a text as a listener with this address and no other settings."""
        return {"address": values} if isinstance(values, str) else values

    @field_validator("address")
    @classmethod
    def _parsed(cls, text: str) -> str:
        try:
            return str(Address.parse(text))
        except ConfigError as error:
            raise ValueError(str(error)) from error


class NetworkSettings(Section):
    """Listeners, and certificates for those that name none (docs/operate/security.md)."""

    listeners: Annotated[tuple[ListenerSettings, ...], LISTED] = ()
    """Addresses to listen on, each a text or a table with its own certificate and limit; if empty,
    127.0.0.1:1883."""
    cert: Path | None = None
    """Certificate of the broker, with intermediate certificates, PEM."""
    key: Path | None = None
    """Private key of the certificate, not encrypted, PEM."""
    client_ca: Path | None = None
    """Authorities that must have signed client certificates, PEM; if absent, clients need no
    certificate."""
    crl: Path | None = None
    """Certificates revoked by these authorities, PEM."""
    tls_version_min: Literal["1.2", "1.3"] = "1.2"
    """Minimum version of TLS."""
    password_file: Path | None = None
    """Users with password hashes; if absent, no passwords are checked."""
    token_keys: Path | None = None
    """Keys of signed tokens (JWT): public keys in PEM, or a JSON Web Key Set; if absent, tokens are
    not used."""
    token_audience: str | None = None
    """Required JWT audience (`aud`); `token_keys` needs it."""
    token_issuer: str | None = None
    """Required JWT issuer (`iss`); if absent, any issuer with a valid key."""
    token_roles_claim: str = "roles"
    """JWT claim with role names, added to the user's roles in the rules."""
    password_is: Literal["password", "token"] | None = None
    """Content of the password in CONNECT, if the listener does not set it. If absent, a token if
    there are keys and no users."""
    acl_file: Path | None = None
    """Rules for publish and receive: TOML if the name ends in `.toml`, otherwise an ACL file of
    Mosquitto. If absent, all topics are allowed; with authentication this also needs
    `allow_all_topics`."""
    allow_all_topics: bool = False
    """Allow all topics for authenticated clients if there are no rules."""
    allow_anonymous: bool | None = None
    """Allow clients without a user name; if absent, only if there are no users."""
    allow_plaintext: bool = False
    """Allow listeners beyond loopback without TLS."""
    origins: Annotated[tuple[str, ...], LISTED] = ()
    """Origins of web pages that may connect by WebSocket, such as `https://shop.example`, or `*`.
    The broker's own address is always allowed."""

    @field_validator("listeners")
    @classmethod
    def _each_once(cls, listeners: tuple[ListenerSettings, ...]) -> tuple[ListenerSettings, ...]:
        """Reject two listeners at one place, whatever their scheme; port 0 is always different."""
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
    def takes_certificates(self) -> bool:
        """True if a client may prove its identity by a certificate."""
        by_proxy = any([each.proxies_check_certificates for each in self.listeners])
        authorities = [self.client_ca, *[each.client_ca for each in self.listeners]]
        return by_proxy or any([each is not None for each in authorities])

    @property
    def asks(self) -> bool:
        """True if clients must prove their identity by more than a certificate."""
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


class HttpSettings(Section):
    """The port for metrics, status and health (docs/operate/operations.md)."""

    address: str | None = None
    """Address of the port, HOST:PORT, or `none` for no port; if absent, 127.0.0.1:9883, or a free
    port if a listener has port 0."""
    names: Annotated[tuple[str, ...], LISTED] = ()
    """Accepted names in the Host header, besides IP addresses and localhost."""
    token_file: Path | None = None
    """File whose first line is the token for requests from other machines; if absent, the page is
    only for this machine."""
    backup_interval_s: float = Field(10.0, ge=0)
    """Pause between two copies of the store; all commits wait during a copy, seconds."""

    @field_validator("names")
    @classmethod
    def _hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not name or set(name) & set(":/*[] "):
                raise ValueError(f"{name!r}: a name without scheme, port and wildcard is expected")
        return tuple(name.lower().removesuffix(".") for name in names)

    @field_validator("address")
    @classmethod
    def _place(cls, text: str | None) -> str | None:
        try:
            if text not in (None, HTTP_NONE):
                parse_address(text)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return text


class ClusterSettings(Section):
    """This node in a cluster over Redis (docs/operate/cluster.md)."""

    address: str | None = None
    """HOST:PORT at which the other nodes reach this one, also its name; if absent, there is no
    cluster. Each shard uses two ports: PORT + 2 x its number, and the next one."""
    cert: Path | None = None
    """Certificate for connections between nodes, which then use TLS: it must name the host of
    `address`, PEM."""
    key: Path | None = None
    """Private key of this certificate, not encrypted, PEM."""
    ca: Path | None = None
    """Authorities that must have signed the certificates of all nodes, and of nothing else, PEM."""
    allow_plaintext: bool = False
    """Allow an address beyond loopback without TLS: programs that reach its ports can act as any
    client."""
    shards: int = Field(6, ge=2, le=SHARDS_MAX)
    """Number of parts in which the cluster divides its sessions, fixed by the first start. A
    process runs each of them."""

    @field_validator("address")
    @classmethod
    def _reachable(cls, address: str | None) -> str | None:
        try:
            if address is not None and not parse_address(address)[1]:
                raise ConfigError(f"{address}: expected a port that other nodes reach")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return address

    @model_validator(mode="after")
    def _protected(self) -> Self:
        files = (self.cert, self.key, self.ca)
        if None in files and any(files):
            raise ValueError("cluster.cert, cluster.key and cluster.ca go together")
        if self.address is None or self.cert is not None or self.allow_plaintext:
            return self
        if not Address.parse(self.address).is_local:
            raise ValueError(
                f"cluster.address {self.address}: other machines reach its ports, and could act as "
                "any client: set cluster.cert, cluster.key and cluster.ca, or "
                "cluster.allow_plaintext = true"
            )
        return self

    @model_validator(mode="after")
    def _ports(self) -> Self:
        if self.address is not None:
            last = parse_address(self.address)[1] + PORTS_PER_SHARD * self.shards - 1
            if last > PORT_MAX:
                raise ValueError(
                    f"cluster.address {self.address} with {self.shards} shards needs ports up to "
                    f"{last}, and {PORT_MAX} is the last one"
                )
        return self
