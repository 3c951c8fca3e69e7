"""Unknown names: SCRAM asks them the same, for any state of broker and file."""

import pytest

from flowguard.identity.passwords import KEY, PasswordFile
from flowguard.identity.scram import SALT_BYTES, ScramVerifier

OLD = str(ScramVerifier.of("pencil", bytes(range(SALT_BYTES))))


def read(text: str) -> PasswordFile:
    """The file as a broker reads it when it starts."""
    return PasswordFile.parse(text, "users")


def made(*users: str) -> PasswordFile:
    found = PasswordFile({})
    for user in users:
        found = found.with_user(user, b"secret", scram=True)
    return found


def asked(users: PasswordFile, name: str) -> tuple[bytes, int]:
    """Return the information about a name that is visible before any proof."""
    found = users.scram(name)
    return found.salt, found.iterations


@pytest.mark.parametrize("text", [made("ann").text(), f"ann:{OLD}\n"])
def test_a_restart_and_another_broker_with_the_file_ask_the_same(text: str) -> None:
    assert asked(read(text), "eve") == asked(read(text), "eve")
    assert asked(read(text), "ann") == asked(read(text), "ann")
    assert asked(read(text), "eve") != asked(read(text), "mallory")


@pytest.mark.parametrize("first", [made("ann"), read(f"ann:{OLD}\n")], ids=["with key", "without"])
def test_users_that_come_and_go_change_nothing_that_is_asked(first: PasswordFile) -> None:
    names = ("ann", "bob", "eve")
    before = [asked(first, name) for name in names]
    second = read(first.with_user("bob", b"other", scram=True).text())
    assert [asked(second, name) for name in names] == before
    third = read(second.with_user("bob", b"another", scram=True).text())
    assert [asked(third, name) for name in names] == before
    assert third.verify("bob", b"another")
    fourth = read(third.without_user("bob").text())
    assert [asked(fourth, name) for name in names] == before


def test_files_have_different_keys() -> None:
    assert asked(made("ann"), "eve") != asked(made("ann"), "eve")
    other = str(ScramVerifier.of("pen", bytes(range(SALT_BYTES))))
    assert asked(read(f"ann:{OLD}\n"), "eve") != asked(read(f"ann:{other}\n"), "eve")


def test_a_file_without_verifiers_stays_as_mosquitto_writes_it() -> None:
    assert KEY not in read("ann:$6$aa$aa\n").with_user("bob", b"secret").text()
