"""A certificate authority for tests: certificates of the broker and of clients, and revocations.

authority = Authority(folder)
pair = authority.issue("127.0.0.1")
context = authority.client_context(authority.issue("sensor-7"))
"""

import base64
import hashlib
import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path
    serial: int

    def pin(self) -> str:
        """The digest of its public key, by which Chromium can be told to trust it."""
        public = x509.load_pem_x509_certificate(self.cert.read_bytes()).public_key()
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        der = public.public_bytes(serialization.Encoding.DER, form)
        return base64.b64encode(hashlib.sha256(der).digest()).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs what it is asked for; its own certificate, which `parent` signs, is in `cert`."""

    def __init__(
        self, folder: Path, name: str = "authority", parent: "Authority | None" = None
    ) -> None:
        self._folder = folder
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._now = datetime.now(UTC)
        self._certificate = (parent or self)._signed(self._name, self._key, ca=True)
        self.cert = folder / f"{name}.pem"
        self.cert.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        *,
        ca: bool = False,
        names: x509.ExtensionType | None = None,
        days: int = 30,
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - 30 * DAY)
            .not_valid_after(self._now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        if ca:
            uses = dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment"), False
            )
            uses |= dict.fromkeys(("data_encipherment", "key_agreement"), False)
            uses |= dict.fromkeys(("encipher_only", "decipher_only"), False)
            builder = builder.add_extension(
                x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses), critical=True
            )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(
        self,
        name: str,
        *,
        common_name: bool = True,
        alternative_names: bytes | None = None,
        days: int = 30,
    ) -> Pair:
        """A certificate for a host, an address or a client; `alternative_names`: in DER, instead
        of its name; `days`: for which it is valid, negative: it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            alternative = x509.DNSName(name)
        subject = _name(name) if common_name else x509.Name([])
        names: x509.ExtensionType = x509.SubjectAlternativeName([alternative])
        if alternative_names is not None:
            names = x509.UnrecognizedExtension(names.oid, alternative_names)
        certificate = self._signed(subject, key, names=names, days=days)
        serial = certificate.serial_number
        pair = Pair(self._folder / f"{serial}.crt", self._folder / f"{serial}.key", serial)
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def revoke(self, *pairs: Pair) -> Path:
        """The list of revoked certificates, as a file."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(self._now - DAY)
            .next_update(self._now + 30 * DAY)
        )
        for pair in pairs:
            revoked = x509.RevokedCertificateBuilder().serial_number(pair.serial)
            builder = builder.add_revoked_certificate(
                revoked.revocation_date(self._now - DAY).build()
            )
        path = self._folder / f"revoked-{len(pairs)}.pem"
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return path

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority, and has the identity of
        `pair`."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context
