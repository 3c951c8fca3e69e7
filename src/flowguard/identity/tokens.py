"""Tokens: signed JSON Web Tokens ([RFC 7519]) with a client's identity and its expiry.

The key limits the algorithms of a token's signature; the token's header only selects one of these.
RSA keys allow RS256, RS384 and RS512, keys of elliptic curves the ES of their curve, and secrets
(`oct`) HS256, HS384 and HS512. Keys are public ones in PEM, or a JSON Web Key Set ([RFC 7517]),
which may also contain secrets. No token appears in any error.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.types import Options

from flowguard.access.rights import Principal
from flowguard.errors import ConfigError, UnprovedError

RSA_BITS_MIN: Final = 2048
TOKEN_BYTES_MAX: Final = 16 * 1024
NAMES_BYTES_MAX: Final = 2_048
"""Maximum size of user and roles in a token together, bytes."""
SKEW_S: Final = 10.0
"""Maximum difference by which the issuer's clock may be ahead, seconds."""
INSTANT_MAX_S: Final = 1e300
"""Maximum Unix time of a claim, because an integer in JSON may exceed any float."""
HMAC_BYTES_MIN: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Minimum size of a secret, bytes: that of the hash [RFC 7518, 3.2]."""
RSA: Final = ("RS256", "RS384", "RS512")
CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
PEM_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_OPTIONS: Final[Options] = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "require": ["exp", "sub"],
}
"""Options of PyJWT without its time checks, because `TokenFile` checks times itself."""


@dataclass(frozen=True, slots=True)
class _Key:
    key: Any
    """The key as PyJWT takes it."""
    algorithms: tuple[str, ...]
    name: str | None
    """The `kid` of the key, or None; a key without one is tried for any token."""


@final
@dataclass(frozen=True, slots=True)
class TokenFile:
    """Keys by which tokens are checked, and the required claims."""

    keys: Sequence[_Key]
    audience: str
    issuer: str | None = None
    """Required issuer, or None for any issuer with one of the keys."""
    roles_claim: str = "roles"

    @classmethod
    def parse(
        cls,
        data: bytes,
        name: str,
        audience: str,
        issuer: str | None = None,
        roles_claim: str = "roles",
    ) -> Self:
        """Read the keys of a file called `name`; raises ConfigError."""
        keys = _from_set(data, name) if data.lstrip().startswith(b"{") else _from_pem(data, name)
        return cls(keys, audience, issuer, roles_claim)

    def verify(self, token: bytes, user: str | None, now_s: float) -> Principal:
        """Return the identity in a valid token; `user`: the user name in CONNECT, if any.

        Raises UnprovedError.
        """
        claims = self._claims(token)
        named, expires_at_s = claims["sub"], _instant(claims, "exp")
        if not isinstance(named, str) or not named:
            raise UnprovedError("token names nobody")
        if user and user != named:
            raise UnprovedError("token is of another user")
        if expires_at_s <= now_s:
            raise UnprovedError("token has expired")
        if "nbf" in claims and _instant(claims, "nbf") > now_s + SKEW_S:
            raise UnprovedError("token is not valid yet")
        roles = _roles(claims.get(self.roles_claim, ()))
        try:
            names_bytes = sum([len(name.encode()) for name in (named, *roles)])
        except UnicodeEncodeError as error:  # Half a surrogate pair is valid in JSON.
            raise UnprovedError("token has names that are no text") from error
        if names_bytes > NAMES_BYTES_MAX:
            raise UnprovedError("token has names that are too long")
        return Principal(named, roles, expires_at_s)

    def _claims(self, token: bytes) -> Mapping[str, Any]:
        if len(token) > TOKEN_BYTES_MAX:
            raise UnprovedError("token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.InvalidTokenError, RecursionError) as error:
            raise UnprovedError("password is no token") from error
        algorithm, name = header.get("alg"), header.get("kid")
        why = "token is signed by a key or an algorithm that is not known here"
        for key in self.keys:
            if algorithm not in key.algorithms or (name and key.name and name != key.name):
                continue
            try:
                claims: Mapping[str, Any] = jwt.decode(
                    token,
                    key.key,
                    algorithms=[algorithm],
                    audience=self.audience,
                    issuer=self.issuer,
                    options=_OPTIONS,
                )
            except jwt.InvalidSignatureError:
                why = "token has a wrong signature"
            except jwt.InvalidTokenError as error:
                raise UnprovedError(_why(error)) from error
            else:
                return claims
        raise UnprovedError(why)


def _why(error: jwt.InvalidTokenError) -> str:
    """Return why the claims of a token are insufficient, without repeating any of them."""
    match error:
        case jwt.MissingRequiredClaimError():
            return f"token has no {error.claim}"
        case jwt.InvalidAudienceError():
            return "token is for another audience"
        case jwt.InvalidIssuerError():
            return "token is of another issuer"
    return "token is malformed"


def _instant(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not -INSTANT_MAX_S < value < INSTANT_MAX_S:
        raise UnprovedError(f"token has no time in {name}")
    return float(value)


def _roles(claim: object) -> tuple[str, ...]:
    """Return the roles of a claim: a list, or a single text."""
    roles = [claim] if isinstance(claim, str) else claim
    if isinstance(roles, (list, tuple)) and all([isinstance(role, str) for role in roles]):
        return tuple(roles)
    raise UnprovedError("token has roles that are no names")


# --- keys --------------------------------------------------------------------------------------


def _from_set(data: bytes, name: str) -> list[_Key]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is no JSON: {error}") from error
    listed = found.get("keys")
    if not isinstance(listed, list):
        raise ConfigError(f'{name} is no JSON Web Key Set: {{"keys": [...]}} is expected')
    keys: list[_Key] = []
    for number, each in enumerate(listed, start=1):
        where = f"{name}, key {number}"
        if not isinstance(each, dict):
            raise ConfigError(f"{where}: an object is expected")
        if each.get("kty") in ("RSA", "EC", "oct") and each.get("use", "sig") == "sig":
            keys.append(_from_object(each, where))
    if not keys:
        raise ConfigError(f"{name} has no key of kind RSA, EC or oct that is for signatures")
    return keys


def _from_object(each: Mapping[str, Any], where: str) -> _Key:
    """Return one key of a set; only public keys and secrets are accepted."""
    if each["kty"] != "oct" and "d" in each:
        raise ConfigError(f"{where}: this is a private key, and the broker wants the public one")
    named = each.get("kid")
    if named is not None and not isinstance(named, str):
        raise ConfigError(f"{where}: its kid is no text")
    # `alg` is checked below, because PyJWT would derive another kind of key from it.
    bare = {name: value for name, value in each.items() if name not in ("alg", "key_ops", "use")}
    read_as = {"RSA": "RS256", "oct": "HS256"}.get(each["kty"])
    try:
        found = jwt.PyJWK(bare, read_as)
        key = found.Algorithm.prepare_key(found.key)  # As for each token, so that none fails then.
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigError(f"{where}: this is no key that can be used") from error
    algorithms = _algorithms(key, where)
    alg = each.get("alg")
    if alg is not None and alg not in algorithms:
        raise ConfigError(f"{where}: {alg!r} is none of {', '.join(algorithms)}, which it is for")
    return _Key(key, algorithms if alg is None else (alg,), named)


def _from_pem(data: bytes, name: str) -> list[_Key]:
    keys: list[_Key] = []
    for number, block in enumerate(PEM_BLOCK.finditer(data), start=1):
        where, kind = f"{name}, block {number}", block[1]
        if b"PRIVATE" in kind:
            raise ConfigError(
                f"{where}: this is a private key, and the broker wants the public one"
            )
        try:
            if kind == b"CERTIFICATE":
                key: object = x509.load_pem_x509_certificate(block[0]).public_key()
            else:
                key = load_pem_public_key(block[0])
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{where}: this is no public key that can be used") from error
        keys.append(_Key(key, _algorithms(key, where), None))
    if not keys:
        raise ConfigError(f"{name} is neither public keys in PEM nor a JSON Web Key Set")
    return keys


def _algorithms(key: object, where: str) -> tuple[str, ...]:
    """Return the algorithms of a key; raises ConfigError for a weak or unknown key."""
    if isinstance(key, RSAPublicKey):
        if key.key_size < RSA_BITS_MIN:
            raise ConfigError(f"{where}: RSA keys have {RSA_BITS_MIN} bits at least")
        return RSA
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in CURVES:
        return (CURVES[key.curve.name],)
    if isinstance(key, bytes):
        found = tuple([name for name, least in HMAC_BYTES_MIN.items() if len(key) >= least])
        if not found:
            raise ConfigError(f"{where}: a secret has {HMAC_BYTES_MIN['HS256']} bytes at least")
        return found
    raise ConfigError(f"{where}: keys are of RSA, of P-256, P-384 and P-521, or secrets")
