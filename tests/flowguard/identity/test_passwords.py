"""Files of users and hashes, ours and Mosquitto's, and what is remembered of them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowguard.errors import ConfigError
from flowguard.identity import passwords
from flowguard.identity.failures import BURST, REFILL_S, FailureLimit, origin_of
from flowguard.identity.passwords import PasswordFile
from flowguard.identity.remembered import RememberedPasswords

KEY = bytes(32)


def test_what_is_written_is_argon2id_and_is_read_again() -> None:
    users = PasswordFile({}).with_user("ann", b"secret").with_user("bob", b"other")
    assert users.text().startswith("ann:$argon2id$v=19$m=19456,t=2,p=1$")
    again = PasswordFile.parse("# people\n\n" + users.text(), "users")
    assert again.verify("ann", b"secret")
    assert not again.verify("ann", b"other")
    assert not again.verify("ann", b"")
    assert not again.verify("eve", b"secret")
    assert not again.without_user("ann").verify("ann", b"secret")
    assert not PasswordFile({}).verify("ann", b"secret")


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["sha512", "sha512-pbkdf2"])
def test_files_of_mosquitto_are_read(tmp_path: Path, kind: str) -> None:
    program = shutil.which("mosquitto_passwd")
    if program is None:
        pytest.skip("mosquitto_passwd is not installed")
    path = tmp_path / "users"
    made = subprocess.run([program, "-H", kind, "-c", "-b", str(path), "ann", "pass word"])
    assert made.returncode == 0
    users = PasswordFile.parse(path.read_text(), "users")
    assert users.hashes["ann"].startswith("$6$" if kind == "sha512" else "$7$")
    assert users.verify("ann", b"pass word")
    assert not users.verify("ann", b"password")


@pytest.mark.parametrize(
    "line", ["ann", "ann:", ":$7$1$aa$aa", "ann:plain secret", "ann:$5$a$b", "ann:$argon2i$v=19"]
)
def test_a_line_that_is_none_is_named_by_its_number_and_shows_no_secret(line: str) -> None:
    with pytest.raises(ConfigError) as error:
        PasswordFile.parse(f"# one\n{line}\n", "users")
    assert "users, line 2" in str(error.value)
    assert "secret" not in str(error.value)
    assert "flowguard passwd add" in str(error.value)


def test_a_user_has_one_line() -> None:
    with pytest.raises(ConfigError, match="line 2: there is another 'ann'"):
        PasswordFile.parse("ann:$6$aa$aa\nann:$6$aa$aa\n", "users")


@pytest.mark.parametrize(
    "hashed",
    ["$argon2id$nonsense", "$7$x$y$z", "$7$1$aa", f"$7${10**30}$aa==$aa==", "$6$!$!", "$6$aa"],
)
def test_a_hash_that_is_damaged_is_nobodys_password(hashed: str) -> None:
    assert not PasswordFile({"ann": hashed}, KEY).verify("ann", b"secret")


@pytest.mark.parametrize("user", ["", "a:b", "#ann", "a\nb", "a\0b"])
def test_a_name_that_the_file_cannot_hold_is_refused(user: str) -> None:
    with pytest.raises(ConfigError, match=r"a user has a name without .* begin with #"):
        PasswordFile({}).with_user(user, b"secret")


def test_who_does_not_exist_costs_what_somebody_who_does_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One hash of the file is computed for each request, and always the same one for a name."""
    computed: list[str] = []
    is_right = passwords._is_right

    def watched(hashed: str, password: bytes) -> bool:
        computed.append(hashed)
        return is_right(hashed, password)

    monkeypatch.setattr(passwords, "_is_right", watched)
    hashes = {f"u{n}": f"$6$aa{n}$aa" for n in range(10)}
    users = PasswordFile(hashes, KEY)
    for name in ("u3", *(f"stranger {n}" for n in range(50))):
        users.verify(name, b"x")
        users.verify(name, b"y")
        assert len(computed) == 2
        assert len(set(computed)) == 1
        assert set(computed) <= set(hashes.values())
        computed.clear()


NAMES = st.sampled_from(["a", "b", "ab"])
SECRETS = st.sampled_from([b"", b"a", b"b", b"ba"])


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "ask"]), NAMES, SECRETS, NAMES)))
@settings(max_examples=100)
def test_only_the_last_right_password_is_remembered_with_its_hash(
    steps: list[tuple[str, str, bytes, str]],
) -> None:
    remembered = RememberedPasswords(KEY)
    model: dict[str, tuple[bytes, str]] = {}
    for step, user, password, hashed in steps:
        if step == "add":
            remembered.add(user, password, hashed)
            model[user] = password, hashed
        else:
            known = remembered.knows(user, password, hashed)
            assert known == (model.get(user) == (password, hashed))
        assert len(remembered) == len(model)


def test_the_one_that_was_not_used_for_longest_is_forgotten_first() -> None:
    remembered = RememberedPasswords(KEY, entries_max=2)
    remembered.add("a", b"1", "x")
    remembered.add("b", b"2", "x")
    assert remembered.knows("a", b"1", "x")
    remembered.add("c", b"3", "x")
    assert [remembered.knows(user, b"%d" % n, "x") for n, user in enumerate("abc", 1)] == [
        True,
        False,
        True,
    ]


def test_no_password_is_kept_as_it_is() -> None:
    remembered = RememberedPasswords(KEY)
    remembered.add("ann", b"secret", "x")
    assert "secret" not in repr(remembered._marks)


def test_an_address_that_is_wrong_too_often_waits_and_others_do_not() -> None:
    limit = FailureLimit()
    for _ in range(int(BURST)):
        assert limit.allows("eve", 0.0)
        limit.failed("eve", 0.0)
    assert not limit.allows("eve", 0.0)
    assert limit.allows("ann", 0.0)
    assert not limit.allows("eve", 0.9 * REFILL_S)
    assert limit.allows("eve", REFILL_S)


def test_a_limit_is_reported_once_until_the_address_has_all_its_attempts_again() -> None:
    limit = FailureLimit()
    now_s, reported = 0.0, []
    for _ in range(100):
        reported.append(limit.failed("eve", now_s))
        now_s += REFILL_S
        assert limit.allows("eve", now_s)
    assert not any(reported)
    for number in range(1, 100):
        if limit.failed("eve", now_s):
            reported.append(True)
            assert number <= BURST
        assert limit.allows("eve", now_s) or reported[-1]
        now_s += 0.0 if number < BURST else REFILL_S
    assert reported.count(True) == 1
    now_s += BURST * REFILL_S
    assert [limit.failed("eve", now_s) for _ in range(int(BURST))].count(True) == 1


def test_addresses_that_were_wrong_are_bounded() -> None:
    limit = FailureLimit(addresses_max=3)
    for number in range(10):
        limit.failed(f"{number}", 0.0)
    assert len(limit) == 3


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("[2001:db8::1]", "[2001:db8::ffff:1]", True),
        ("[2001:db8:0:1::1]", "[2001:db8:0:2::1]", False),
        ("[fe80::1%eth0]", "[fe80::2]", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("[::ffff:192.0.2.1]", "[::ffff:192.0.2.2]", False),
        ("[::ffff:192.0.2.1]", "192.0.2.1", True),
        ("", "unknown", False),
    ],
)
def test_who_has_an_address_of_ipv6_has_many(one: str, other: str, are_one: bool) -> None:
    assert (origin_of(one) == origin_of(other)) is are_one
