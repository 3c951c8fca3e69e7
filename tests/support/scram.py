"""A client of SCRAM-SHA-256 after [RFC 5802], which shares nothing with the broker's end."""

import base64
import hashlib
import hmac


class ScramClient:
    """The client's messages in order; `check` returns True if the server knows the password,
    too."""

    def __init__(self, user: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL") -> None:
        self._password = password
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._nonce = nonce
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        text = server_first.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        assert fields["r"].startswith(self._nonce)
        assert len(fields["r"]) > len(self._nonce)
        salt, count = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), salt, count)
        without_proof = f"c=biws,r={fields['r']}"
        said = f"{self._bare},{text},{without_proof}".encode()
        key = hmac.digest(salted, b"Client Key", "sha256")
        signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes | None) -> bool:
        expected = b"v=" + base64.b64encode(self._signature)
        return server_final is not None and hmac.compare_digest(server_final, expected)
