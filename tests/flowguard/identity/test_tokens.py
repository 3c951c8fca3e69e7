"""Tokens that prove an identity, and keys that a file may hold."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from flowguard.errors import ConfigError, UnprovedError
from flowguard.identity.tokens import TOKEN_BYTES_MAX, TokenFile

NOW_S = 1_700_000_000.0
SECRET = b"a secret of thirty-two bytes ...."
RSA_KEY = rsa.generate_private_key(65_537, 2048)
CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
EC_KEYS = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}
CLAIMS = {"sub": "ann", "exp": NOW_S + 60, "aud": "mqtt", "roles": ["device"]}


def pem(key: Any) -> bytes:
    data: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def secret_set(secret: bytes = SECRET, **more: Any) -> bytes:
    return key_set({"kty": "oct", "k": text(secret), **more})


def signed(key: Any, algorithm: str, changes: dict[str, Any] | None = None, **header: Any) -> bytes:
    """Return a token with the usual claims; a value of None removes one."""
    claims = {k: v for k, v in (CLAIMS | (changes or {})).items() if v is not None}
    return jwt.encode(claims, key, algorithm, headers=header).encode()


def file(data: bytes, **terms: Any) -> TokenFile:
    return TokenFile.parse(data, "keys", "mqtt", **terms)


def why(data: bytes, token: bytes, user: str | None = None, **terms: Any) -> str:
    with pytest.raises(UnprovedError) as error:
        file(data, **terms).verify(token, user, NOW_S)
    return str(error.value)


# --- tokens that are right ---------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "RS384", "RS512", *CURVES])
def test_a_token_says_who_its_bearer_is_in_which_roles_and_until_when(algorithm: str) -> None:
    kind = algorithm[:2]
    key = {"HS": SECRET, "RS": RSA_KEY}.get(kind) or EC_KEYS[algorithm]
    keys = secret_set() if kind == "HS" else pem(key)
    principal = file(keys).verify(signed(key, algorithm), "ann", NOW_S)
    assert (principal.user, principal.roles) == ("ann", ("device",))
    assert principal.expires_at_s == NOW_S + 60


@pytest.mark.parametrize(("user", "is_right"), [(None, True), ("ann", True), ("bob", False)])
def test_a_user_name_that_is_said_is_the_one_that_is_proved(user: str, is_right: bool) -> None:
    token = signed(SECRET, "HS256")
    if is_right:
        assert file(secret_set()).verify(token, user, NOW_S).user == "ann"
    else:
        assert why(secret_set(), token, user) == "token is of another user"


def test_keys_of_a_set_are_found_by_their_name_and_tried_without_one() -> None:
    other = b"another secret of thirty-two bytes"
    keys = key_set(
        {"kty": "oct", "k": text(other), "kid": "old"},
        {"kty": "oct", "k": text(SECRET), "kid": "new", "alg": "HS256"},
        {"kty": "OKP", "crv": "Ed25519", "x": "not looked at"},
        {"kty": "RSA", "use": "enc", "n": "nor", "e": "this"},
    )
    assert file(keys).verify(signed(SECRET, "HS256", kid="new"), None, NOW_S).user == "ann"
    assert file(keys).verify(signed(SECRET, "HS256"), None, NOW_S).user == "ann"
    assert why(keys, signed(SECRET, "HS256", kid="old")) == "token has a wrong signature"
    assert "not known here" in why(keys, signed(SECRET, "HS256", kid="third"))


def test_a_file_of_pem_may_hold_old_and_new_keys_together() -> None:
    keys = pem(RSA_KEY) + pem(EC_KEYS["ES256"])
    for key, algorithm in ((RSA_KEY, "RS256"), (EC_KEYS["ES256"], "ES256")):
        assert file(keys).verify(signed(key, algorithm), None, NOW_S).user == "ann"


def test_the_claim_of_roles_has_any_name_and_may_be_one_text() -> None:
    found = file(secret_set(), roles_claim="groups")
    token = signed(SECRET, "HS256", {"groups": "operator"})
    assert found.verify(token, None, NOW_S).roles == ("operator",)


# --- tokens that are wrong ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exp": None}, "token has no exp"),
        ({"sub": None}, "token has no sub"),
        ({"sub": ""}, "token names nobody"),
        ({"aud": None}, "token has no aud"),
        ({"aud": "shop"}, "token is for another audience"),
        ({"aud": ["shop", "bank"]}, "token is for another audience"),
        ({"exp": NOW_S}, "token has expired"),
        ({"exp": NOW_S - 1e6}, "token has expired"),
        ({"exp": float("inf")}, "token has no time in exp"),
        ({"exp": "tomorrow"}, "token has no time in exp"),
        ({"exp": True}, "token has no time in exp"),
        ({"exp": 10**400}, "token has no time in exp"),
        ({"nbf": NOW_S + 60}, "token is not valid yet"),
        ({"nbf": "soon"}, "token has no time in nbf"),
        ({"roles": [1]}, "token has roles that are no names"),
        ({"roles": {"a": 1}}, "token has roles that are no names"),
        ({"roles": ["r" * 3_000]}, "token has names that are too long"),
        ({"roles": ["\ud800"]}, "token has names that are no text"),
        ({"sub": "\ud800"}, "token has names that are no text"),
    ],
)
def test_what_a_token_has_to_say(changes: dict[str, Any], said: str) -> None:
    assert why(secret_set(), signed(SECRET, "HS256", changes)) == said


def test_a_clock_that_is_a_little_fast_makes_no_token_invalid() -> None:
    token = signed(SECRET, "HS256", {"nbf": NOW_S + 5, "iat": NOW_S + 5})
    assert file(secret_set()).verify(token, None, NOW_S).user == "ann"


def test_an_issuer_that_is_wanted_is_the_one() -> None:
    wanted = {"issuer": "https://id.example"}
    right = signed(SECRET, "HS256", {"iss": "https://id.example"})
    assert file(secret_set(), **wanted).verify(right, None, NOW_S).user == "ann"
    wrong = signed(SECRET, "HS256", {"iss": "https://other.example"})
    assert why(secret_set(), wrong, **wanted) == "token is of another issuer"
    assert why(secret_set(), signed(SECRET, "HS256"), **wanted) == "token has no iss"


def handmade(header: dict[str, Any], secret: bytes | None) -> bytes:
    """A token that no library would make."""
    parts = [text(json.dumps(part).encode()) for part in (header, CLAIMS)]
    signature = b""
    if secret is not None:
        signature = hmac.digest(secret, ".".join(parts).encode(), hashlib.sha256)
    return ".".join([*parts, text(signature)]).encode()


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", None, 1, ["HS256"]])
def test_a_token_that_nobody_signed_proves_nothing(alg: object) -> None:
    for keys in (secret_set(), pem(RSA_KEY)):
        why(keys, handmade({"alg": alg, "typ": "JWT"}, None))


def test_a_public_key_is_no_secret() -> None:
    """Otherwise everyone could sign with it, because it is known to all."""
    public = pem(RSA_KEY)
    for secret in (public, public.strip(), public.replace(b"\n", b"")):
        assert "not known here" in why(public, handmade({"alg": "HS256"}, secret))
    der = RSA_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert "not known here" in why(public, handmade({"alg": "HS256"}, der))


def test_a_key_signs_by_no_algorithm_but_its_own() -> None:
    keys = pem(EC_KEYS["ES256"])
    assert "not known here" in why(keys, signed(RSA_KEY, "RS256"))
    assert "not known here" in why(keys, signed(EC_KEYS["ES384"], "ES384"))
    only = secret_set(SECRET * 2, alg="HS256")
    assert "not known here" in why(only, signed(SECRET * 2, "HS512"))
    assert "not known here" in why(pem(RSA_KEY), signed(RSA_KEY, "PS256"))


def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    mine = {"kty": "oct", "k": text(b"x" * 32)}
    header = {"alg": "HS256", "jwk": mine, "jku": "https://evil.example", "x5u": "https://e"}
    assert why(secret_set(), handmade(header, b"x" * 32)) == "token has a wrong signature"


def test_an_extension_that_must_be_understood_is_not() -> None:
    token = signed(SECRET, "HS256", crit=["x"], x=1)
    assert why(secret_set(), token) in ("token is malformed", "password is no token")


@pytest.mark.parametrize("position", range(0, 120, 7))
def test_no_bit_of_a_token_may_change(position: int) -> None:
    token = bytearray(signed(SECRET, "HS256"))
    token[position] ^= 1
    why(secret_set(), bytes(token))


@given(st.binary(max_size=400))
def test_a_password_that_is_no_token_is_wrong_and_nothing_else(data: bytes) -> None:
    why(secret_set(), data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"..",
        b"x" * (TOKEN_BYTES_MAX + 1),
        text(b"[" * 9_000).encode() + b".e30.e30",
        text(b'{"alg":"HS256","a":' + b"[" * 8_000).encode() + b".e30.e30",
        text(b'{"alg":"HS256","kid":7}').encode() + b".e30.e30",
        text(b'["HS256"]').encode() + b".e30.e30",
        b"\xff.\xff.\xff",
    ],
)
def test_so_is_one_that_is_meant_to_break_its_reader(data: bytes) -> None:
    why(secret_set(), data)


# --- files of keys -----------------------------------------------------------------------------


def private(key: Any) -> bytes:
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return data


WEAK = pem(rsa.generate_private_key(65_537, 1024))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "neither public keys in PEM nor a JSON Web Key Set"),
        (SECRET, "neither public keys in PEM nor a JSON Web Key Set"),
        (b"{", "is no JSON"),
        (b"{}", "no JSON Web Key Set"),
        (b'{"keys": [1]}', "key 1: an object is expected"),
        (b'{"keys": []}', "has no key"),
        (key_set({"kty": "OKP", "crv": "Ed25519", "x": "x"}), "has no key"),
        (key_set({"kty": "RSA", "n": "AQAB"}), "key 1: this is no key that can be used"),
        (key_set({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}), "this is no key"),
        (key_set({"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "AQAB"}), "private key"),
        (secret_set(b"short"), "a secret has 32 bytes at least"),
        (secret_set(alg="HS512"), "'HS512' is none of HS256"),
        (secret_set(alg="RS256"), "'RS256' is none of HS256"),
        (secret_set(kid=7), "its kid is no text"),
        (secret_set(pem(RSA_KEY)), "this is no key that can be used"),
        (key_set({"kty": "oct"}), "this is no key that can be used"),
        (b'{"keys": ' + b"[" * 100_000, "is no JSON"),
        (private(RSA_KEY), "block 1: this is a private key"),
        (WEAK, "RSA keys have 2048 bits at least"),
        (pem(RSA_KEY).replace(b"MII", b"AAA"), "this is no public key that can be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(data: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        file(data)
    assert complaint in str(error.value)
    assert SECRET.decode() not in str(error.value)
    assert text(SECRET) not in str(error.value)


def test_secrets_know_the_hashes_that_are_not_longer_than_they_are() -> None:
    found = file(secret_set(b"s" * 48)).keys
    assert found[0].algorithms == ("HS256", "HS384")
