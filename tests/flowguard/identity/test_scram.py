"""Passwords that are proved without being said."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.errors import ConfigError, UnprovedError
from flowguard.identity.passwords import PasswordFile
from flowguard.identity.scram import ITERATIONS_MIN, ScramServer, ScramVerifier
from tests.support.scram import ScramClient

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = ScramVerifier.of("pencil", SALT, 4_096)
LINE = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
"""Secret of the example in [RFC 7677, 3], as PostgreSQL writes it."""


def file(**users: str) -> PasswordFile:
    return PasswordFile.parse("".join(f"{u}:{line}\n" for u, line in users.items()), "users")


def test_the_verifier_is_that_of_the_standards_example() -> None:
    assert str(PENCIL) == LINE
    assert ScramVerifier.parse(LINE) == PENCIL


@pytest.mark.parametrize("user", ["ann", "a=b,c", "Ünal"])
def test_both_sides_prove_the_password_to_each_other(user: str) -> None:
    client, server = ScramClient(user, "pencil"), ScramServer(lambda _: PENCIL)
    answer = server.final(client.final(server.first(client.first())))
    assert client.check(answer)
    assert server.user == user


def test_a_wrong_password_and_a_user_that_nobody_is_fail_alike() -> None:
    users = file(ann=LINE)
    said: dict[str, str] = {}
    for user, password in (("ann", "pen"), ("eve", "pencil")):
        client, server = ScramClient(user, password), ScramServer(users.scram)
        first = server.first(client.first())
        again = ScramServer(users.scram).first(client.first())
        shape = first.split(b",")[1:]
        assert shape == again.split(b",")[1:]  # A salt that changes would tell.
        assert len(base64.b64decode(shape[0][2:])) == len(SALT)
        assert shape[1] == b"i=4096"
        with pytest.raises(UnprovedError) as error:
            server.final(client.final(first))
        said[user] = str(error.value)
    assert said["ann"] == said["eve"]


def test_a_proof_that_was_heard_proves_nothing_the_next_time() -> None:
    client, server = ScramClient("ann", "pencil"), ScramServer(lambda _: PENCIL)
    proof = client.final(server.first(client.first()))
    server.final(proof)
    other = ScramServer(lambda _: PENCIL)
    other.first(client.first())
    with pytest.raises(UnprovedError):
        other.final(proof)


def test_who_knows_the_file_cannot_log_in_with_it() -> None:
    """The stored key is the hash of what a client needs."""
    server, client = ScramServer(lambda _: PENCIL), ScramClient("ann", "pencil")
    fields = client.final(server.first(client.first())).split(b",p=")[0]
    for key in (PENCIL.stored_key, PENCIL.server_key):
        with pytest.raises(UnprovedError):
            ScramServer(lambda _: PENCIL).final(fields + b",p=" + base64.b64encode(key))


@pytest.mark.parametrize(
    "first",
    [
        None,
        b"",
        b"n,,",
        b"n,,n=,r=x",
        b"\xff",
        b"n,,n=a,r=" + b"x" * 600,
        b"n,,n=" + "ﷺ".encode() * 50 + b",r=x",  # 18 characters each, once it is prepared
        b"p=tls-unique,,n=a,r=b",
        b"n,,m=x,n=a,r=b",
        b"n,a=bob,n=ann,r=b",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes | None) -> None:
    with pytest.raises(UnprovedError):
        ScramServer(lambda _: PENCIL).first(first)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_no_bytes_break_the_server(first: bytes, final: bytes) -> None:
    server = ScramServer(lambda _: PENCIL)
    with pytest.raises(UnprovedError):
        server.first(first)
    server = ScramServer(lambda _: PENCIL)
    server.first(ScramClient("ann", "pencil").first())
    for data in (final, b"c=biws,r=x,p=" + final):
        with pytest.raises(UnprovedError):
            server.final(data)


def test_a_password_may_be_said_to_a_verifier_too() -> None:
    users = file(ann=LINE)
    assert users.verify("ann", b"pencil")
    assert not users.verify("ann", b"pen")
    assert not users.verify("ann", b"\xff")
    assert not users.verify("eve", b"pencil")


def test_a_password_that_takes_long_to_prepare_is_not_prepared() -> None:
    for password in ("a" * 513, "ﷺ" * 50):
        assert not file(ann=LINE).verify("ann", password.encode())
        with pytest.raises(UnprovedError, match="too long"):
            ScramVerifier.of(password, SALT, 4_096)


class Counted(dict[str, str]):
    """Users that count how often all of them are listed."""

    looked_through = 0

    def values(self) -> Any:
        self.looked_through += 1
        return super().values()


def test_who_asks_makes_nobody_look_through_all_users() -> None:
    hashes = Counted(ann=LINE, bob="$6$aa$aa")
    users = PasswordFile(hashes, b"k")
    for user in ("ann", "eve", "mallory"):
        assert users.has_scram
        assert users.scram(user).iterations == 4_096
        assert not users.verify(user, b"wrong")
    assert hashes.looked_through == 1


def test_a_user_is_given_a_verifier_and_the_file_reads_it_back() -> None:
    made = PasswordFile({}).with_user("ann", b"secret", scram=True)
    assert PasswordFile.parse(made.text(), "users").verify("ann", b"secret")
    assert made.has_scram
    assert b"secret" not in made.text().encode()
    with pytest.raises(ConfigError, match="does not allow"):
        made.with_user("bob", b"\x07bell", scram=True)


@pytest.mark.parametrize(
    "line",
    [
        "SCRAM-SHA-256$",
        "SCRAM-SHA-256$1:W22ZaJ0SNY7soEsUEjb6gQ==$AA==:AA==",
        LINE.replace("4096", "4095"),
        LINE.replace("4096", "99999999999"),
        LINE.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22Z"),
        LINE[:-5],
        LINE.replace("$W", "$*"),
    ],
)
def test_a_verifier_that_is_none_is_refused_with_its_line_and_without_itself(line: str) -> None:
    with pytest.raises(ConfigError) as error:
        file(ann=line)
    assert str(error.value) == "users, line 1: this is no verifier of SCRAM-SHA-256"


@pytest.mark.parametrize("salt_bytes", [12, 24])
def test_the_salt_of_an_unknown_name_has_the_size_of_those_of_the_file(salt_bytes: int) -> None:
    imported = ScramVerifier.of("secret", bytes(salt_bytes), ITERATIONS_MIN)
    users = PasswordFile.parse(f"ann:{imported}\n", "users")
    asked = users.scram("eve")
    assert len(asked.salt) == salt_bytes
    assert users.with_user("eve", b"secret", scram=True).scram("eve").salt == asked.salt
