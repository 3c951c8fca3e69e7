"""Lines of files: they end where Mosquitto's end, and other encodings are named."""

from pathlib import Path

import pytest

from flowguard.access.mosquitto import parse_acl
from flowguard.access.rights import Principal, Rights, published_as
from flowguard.app.reloadable_files import read_rules
from flowguard.errors import ConfigError
from flowguard.identity.passwords import PasswordFile
from flowguard.lines import lines_of, text_of

NO_ENDS = ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\x1d", "\x1e"]
HASH = "$6$c2FsdA==$" + 86 * "A" + "=="


def may_write(rights: Rights, topic: str) -> bool:
    return bool(rights.decide(topic) & published_as(0, retain=False, will=False))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_end_with_lf_or_crlf(ending: str) -> None:
    assert lines_of(ending.join(["a", " b ", "", "c"])) == ["a", " b", "", "c"]


@pytest.mark.parametrize("character", NO_ENDS)
def test_no_other_character_ends_a_comment(character: str) -> None:
    acl = parse_acl(f"# a comment{character}topic write #\ntopic write a\n", "acl")
    rights = acl.rights(None, "c")
    assert may_write(rights, "a")
    assert not may_write(rights, "b")
    users = PasswordFile.parse(f"# a comment{character}eve:{HASH}\nann:{HASH}\n", "users")
    assert list(users.hashes) == ["ann"]


@pytest.mark.parametrize("character", [*NO_ENDS, "\xa0", "\u3000"])
def test_a_name_keeps_what_mosquitto_keeps_of_it(character: str) -> None:
    blank = character in "\v\f"
    acl = parse_acl(f"user {character}ann{character}\ntopic write a\n", "acl")
    assert may_write(acl.rights(Principal("ann"), "c"), "a") == blank
    users = PasswordFile.parse(f"{character}ann{character}:{HASH}\n", "users")
    assert list(users.hashes) == ["ann" if blank else f"{character}ann{character}"]


FILES = {
    b"\xef\xbb\xbftopic write a\n": "begins with a byte order mark: save it as UTF-8 without one",
    "topic write a\n".encode("utf-16"): "begins with a byte order mark",
    b"topic write a\nuser m\xfcller\n": "line 2: byte 0xFC is not UTF-8, perhaps Latin-1",
}


@pytest.mark.parametrize("data", FILES)
def test_an_error_names_another_encoding(data: bytes, tmp_path: Path) -> None:
    for name in ("acl", "acl.toml", "users"):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ConfigError) as raised:
            (PasswordFile.read if name == "users" else read_rules)(path)
        assert FILES[data] in str(raised.value)
        assert name in str(raised.value)
    assert text_of("müller".encode(), "users") == "müller"


@pytest.mark.parametrize("user", [" a", "a ", "\ta", "a\u2028", "\xa0a", " "])
def test_a_user_that_a_file_would_not_give_back_is_not_added(user: str) -> None:
    with pytest.raises(ConfigError, match="nor end with a blank"):
        PasswordFile({}).with_user(user, b"secret")


def test_a_user_that_is_added_is_there_when_the_file_is_read() -> None:
    for user in ("a", "a b", "\u00e9", "a#", "\U0001f600"):
        users = PasswordFile({user: HASH})
        assert list(PasswordFile.parse(users.text(), "users").hashes) == [user]
        assert user in PasswordFile({}).with_user(user, b"secret", scram=True).hashes


@pytest.mark.parametrize("placeholder", ["%c", "%u", "%u-%c"])
def test_names_take_the_place_of_placeholders_in_pattern_lines_only(placeholder: str) -> None:
    topic = f"sensors/{placeholder}/#"
    rules = parse_acl(f"topic write {topic}\nuser ann\ntopic write {topic}\n", "acl")
    denies = parse_acl(f"user ann\ntopic write #\ntopic deny {topic}\n", "acl")
    patterns = parse_acl(f"pattern write {topic}\n", "acl")
    filled = placeholder.replace("%u", "ann").replace("%c", "victim")
    ann = Principal("ann")
    assert not may_write(rules.rights(ann, "victim"), f"sensors/{filled}/t")
    assert not may_write(rules.rights(None, "victim"), f"sensors/{filled}/t")
    assert may_write(rules.rights(ann, "victim"), f"sensors/{placeholder}/t")
    assert may_write(denies.rights(ann, "victim"), f"sensors/{filled}/t")
    assert not may_write(denies.rights(ann, "victim"), f"sensors/{placeholder}/t")
    assert may_write(patterns.rights(ann, "victim"), f"sensors/{filled}/t")
