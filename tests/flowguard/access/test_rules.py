"""Rights of clients, as tables: the same rules as TOML and as Mosquitto's ACL file."""

import pytest

from flowguard.access.mosquitto import parse_acl
from flowguard.access.rights import NOTHING, RECEIVE, Principal, Rights, published_as
from flowguard.access.rules import Rules
from flowguard.access.rules_toml import parse_toml
from flowguard.errors import ConfigError

TOML = """
[roles.guest]
anonymous = true
receive = ["news/#", "name with spaces/+"]
deny = ["news/secret/#"]

[roles.ann]
users = ["ann"]
publish = ["ann/out/#", "both/+/x", "/lead", "trail/"]
receive = ["ann/in/+", "both/+/x", "$SYS/broker/uptime", "+/plus/#"]
deny = ["both/no/x"]

[roles.bob]
users = ["bob"]
publish = ["#"]
receive = ["#"]
deny = ["secret/#", "+/hidden"]

[roles.everybody]
users = ["*"]
anonymous = true
publish = ["devices/%u/up/#", "clients/%c/up", "mixed/%u-%c", "x/%c/%u"]
receive = ["devices/%u/down/+", "all/+/%c/x"]
"""
ACL = """
# Whoever has no name
topic read news/#
topic read name with spaces/+
topic deny news/secret/#

user ann
topic write ann/out/#
topic read ann/in/+
topic both/+/x
topic write /lead
topic write trail/
topic read $SYS/broker/uptime
topic read +/plus/#
topic deny both/no/x

user bob
topic readwrite #
topic deny secret/#
topic deny +/hidden

pattern write devices/%u/up/#
pattern write clients/%c/up
pattern write mixed/%u-%c
pattern write x/%c/%u
pattern read devices/%u/down/+
pattern read all/+/%c/x
"""
FORMS = {"toml": parse_toml(TOML, "acl.toml"), "mosquitto": parse_acl(ACL, "acl")}

PUBLISHED = {
    (None, "c1"): (
        ["clients/c1/up"],
        [
            "news/a",
            "news",
            "a",
            "clients/c2/up",
            "clients/c1",
            "clients/c1/up/x",
            "devices//up/x",
            "devices/ann/up/x",
            "mixed/-c1",
            "x/c1/",
            "$SYS/a",
            "name with spaces/a",
            "clients/%c/up",
        ],
    ),
    ("ann", "c1"): (
        [
            "ann/out",
            "ann/out/",
            "ann/out/a",
            "ann/out/a/b",
            "both/a/x",
            "both//x",
            "/lead",
            "trail/",
            "devices/ann/up",
            "devices/ann/up/x",
            "devices/ann/up/x/y",
            "clients/c1/up",
            "mixed/ann-c1",
            "x/c1/ann",
        ],
        [
            "ann",
            "ann/in/a",
            "ann/outside",
            "both/no/x",
            "both/a/y",
            "both/x",
            "both/a/b/x",
            "lead",
            "trail",
            "trail//",
            "devices/bob/up/x",
            "devices/ann",
            "devices/ann/down/x",
            "clients/c2/up",
            "mixed/bob-c1",
            "mixed/ann-c2",
            "x/ann/c1",
            "news/a",
            "a/plus/b",
            "$SYS/broker/uptime",
            "Ann/out/a",
            "devices/%u/up/x",
        ],
    ),
    ("bob", "c2"): (
        [
            "a",
            "a/b",
            "",
            "/",
            "ann/out/x",
            "devices/ann/up/x",
            "news/secret/x",
            "hidden",
            "a/hidden/b",
            "devices/bob/up",
            "secrets",
        ],
        ["secret", "secret/a", "secret/a/b", "a/hidden", "/hidden", "$SYS/a", "$other/a"],
    ),
    ("eve", "c3"): (
        ["devices/eve/up/a", "clients/c3/up", "mixed/eve-c3", "x/c3/eve"],
        ["ann/out/a", "both/a/x", "news/a", "a", "devices/ann/up/a", "clients/c1/up"],
    ),
    ("a/b", "c4"): (["clients/c4/up"], ["devices/a/b/up/x", "devices/a/up/x", "mixed/a/b-c4"]),
    ("+", "c4"): (["clients/c4/up"], ["devices/+/up/x", "devices/ann/up/x"]),
    ("#", "c4"): (["clients/c4/up"], ["devices/#", "devices/ann/up/x"]),
    ("eve", "+"): (["devices/eve/up"], ["clients/c1/up", "clients/+/up", "mixed/eve-+"]),
    ("eve", "c/1"): (["devices/eve/up"], ["clients/c/1/up", "clients/c/up", "mixed/eve-c/1"]),
    ("%c", "ann"): (["devices/%c/up/x", "x/ann/%c"], ["devices/ann/up/x", "x/ann/ann"]),
    ("eve", "%u"): (["clients/%u/up", "x/%u/eve"], ["clients/eve/up", "x/eve/eve"]),
}
RECEIVED = {
    (None, "c1"): (
        ["news", "news/a", "news/a/b", "news/secre", "name with spaces/a", "all/a/c1/x"],
        [
            "news/secret",
            "news/secret/a",
            "new",
            "ann/in/a",
            "devices//down/a",
            "all/a/c2/x",
            "$SYS",
        ],
    ),
    ("ann", "c1"): (
        [
            "ann/in/a",
            "ann/in/",
            "both/a/x",
            "$SYS/broker/uptime",
            "a/plus",
            "a/plus/b",
            "/plus/c",
            "devices/ann/down/a",
            "all/a/c1/x",
            "all//c1/x",
        ],
        [
            "ann/in",
            "ann/in/a/b",
            "both/no/x",
            "$SYS/broker",
            "$SYS/plus/a",
            "news/a",
            "plus/a",
            "ann/out/a",
            "devices/bob/down/a",
            "devices/ann/down/a/b",
            "all/a/b/x",
        ],
    ),
    ("bob", "c2"): (
        ["a", "news/secret/a", "ann/in/a", "devices/ann/down/x"],
        ["secret", "secret/a", "a/hidden", "$SYS/broker/uptime"],
    ),
    ("eve", "c3"): (["devices/eve/down/x", "all/a/c3/x"], ["news/a", "a", "devices/ann/down/x"]),
}
SUBSCRIBED = {
    (None, "c1"): (
        ["news/#", "news/+", "news/a", "#", "+/#", "+/a", "news", "all/#", "all/+/+/x",
         "all/a/c1/x", "name with spaces/a", "news/+/a"],
        ["news/secret", "news/secret/#", "news/secret/+", "other/#", "ann/in/+", "all/+/c2/x",
         "$SYS/#", "all/a", "devices/ann/down/x"],
    ),
    ("ann", "c1"): (
        ["ann/#", "ann/in/+", "ann/in/x", "both/+/x", "$SYS/#", "$SYS/broker/+",
         "$SYS/broker/uptime", "#", "a/plus/#", "devices/+/down/x", "devices/ann/#"],
        ["ann/out/#", "ann/in/a/b", "both/no/x", "devices/bob/down/x", "devices/ann/up/#",
         "$SYS/other", "$OTHER/#"],
    ),
    ("bob", "c2"): (
        ["#", "+", "a/b/#", "+/+", "hidden", "a/hidden/#"],
        ["secret", "secret/#", "secret/a/+", "a/hidden", "+/hidden", "$SYS/#"],
    ),
    ("eve", "c3"): (["devices/eve/down/+", "devices/#", "#"], ["news/#", "devices/eve", "ann/#"]),
}  # fmt: skip
SHARED = {
    (None, "c1"): (["name with spaces/+", "all/a/c1/x"], ["news/#", "#", "all/#", "news/secret/#"]),
    ("ann", "c1"): (["ann/in/+", "both/a/x", "a/plus/#"], ["ann/#", "both/+/x", "#"]),
    ("bob", "c2"): (["a/b/#", "a", "devices/+/down/x"], ["#", "+/+", "secret/#", "a/#"]),
}
Table = dict[tuple[str | None, str], tuple[list[str], list[str]]]


def rows(table: Table) -> list[tuple[str | None, str, str, bool]]:
    """User, client id, topic, whether it may."""
    return [
        (user, client_id, topic, may)
        for (user, client_id), lists in table.items()
        for may, topics in zip((True, False), lists, strict=True)
        for topic in topics
    ]


def rights_of(rules: Rules, user: str | None, client_id: str) -> Rights:
    return rules.rights(None if user is None else Principal(user), client_id)


@pytest.fixture(params=list(FORMS))
def rules(request: pytest.FixtureRequest) -> Rules:
    return FORMS[request.param]


@pytest.mark.parametrize(("user", "client_id", "topic", "may"), rows(PUBLISHED))
def test_publish(rules: Rules, user: str | None, client_id: str, topic: str, may: bool) -> None:
    decision = rights_of(rules, user, client_id).decide(topic)
    for qos in range(3):
        for retain in (False, True):
            for will in (False, True):
                assert bool(decision & published_as(qos, retain=retain, will=will)) is may


@pytest.mark.parametrize(("user", "client_id", "topic", "may"), rows(RECEIVED))
def test_receive(rules: Rules, user: str | None, client_id: str, topic: str, may: bool) -> None:
    rights = rights_of(rules, user, client_id)
    assert bool(rights.decide(topic) & RECEIVE) is rights.may_receive(topic) is may
    # A filter that is a topic may be subscribed by all clients that may receive it.
    assert (rights.granted_qos(topic) == 2) is may


@pytest.mark.parametrize(("user", "client_id", "filter", "may"), rows(SUBSCRIBED))
def test_subscribe(rules: Rules, user: str | None, client_id: str, filter: str, may: bool) -> None:
    granted = rights_of(rules, user, client_id).granted_qos(filter)
    assert granted == (2 if may else NOTHING)


@pytest.mark.parametrize(("user", "client_id", "filter", "may"), rows(SHARED))
def test_subscribe_with_others(
    rules: Rules, user: str | None, client_id: str, filter: str, may: bool
) -> None:
    granted = rights_of(rules, user, client_id).granted_qos(filter, shared=True)
    assert granted == (2 if may else NOTHING)


def test_the_tables_are_as_long_as_they_should_be() -> None:
    assert sum(len(rows(table)) for table in (PUBLISHED, RECEIVED, SUBSCRIBED, SHARED)) >= 150


# --- what only one of the two can say ---------------------------------------------------------


def test_a_user_of_mosquittos_file_is_asked_before_patterns_and_deny_before_all_else_there() -> (
    None
):
    rules = parse_acl(
        "user ann\ntopic a/x\ntopic deny b\npattern deny a/#\npattern b\npattern a/y", "acl"
    )
    rights = rights_of(rules, "ann", "c")
    assert [rights.may_receive(topic) for topic in ("a/x", "a/y", "b")] == [True, False, False]
    assert rights_of(rules, "bob", "c").may_receive("b")


LIMITED = """
[roles.device]
users = ["ann"]
publish = ["plain", {topic = "low", qos_max = 0}, {topic = "gone", retain = false},
           {topic = "alive", will = false}, {topic = "both/+", qos_max = 1},
           {topic = "both/x", qos_max = 2, retain = false}]
subscribe = ["a/#", {topic = "b/+", qos_max = 1}, {topic = "c", qos_max = 0}]
receive = [{topic = "d/+", qos_max = 0}]
deny_receive = ["a/secret"]
"""


@pytest.mark.parametrize(
    ("topic", "qos", "retain", "will", "may"),
    [
        ("plain", 2, True, True, True),
        ("low", 0, True, True, True),
        ("low", 1, False, False, False),
        ("gone", 2, False, True, True),
        ("gone", 0, True, False, False),
        ("alive", 2, True, False, True),
        ("alive", 0, False, True, False),
        ("both/x", 1, True, False, True),
        ("both/x", 2, False, False, True),
        ("both/x", 2, True, False, False),
        ("both/y", 2, False, False, False),
        ("a/b", 0, False, False, False),
    ],
)
def test_qos_retain_and_wills_have_limits_of_their_own(
    topic: str, qos: int, retain: bool, will: bool, may: bool
) -> None:
    rights = rights_of(parse_toml(LIMITED, "acl.toml"), "ann", "c")
    assert bool(rights.decide(topic) & published_as(qos, retain=retain, will=will)) is may


@pytest.mark.parametrize(
    ("filter", "granted"),
    [
        ("a/#", 2),
        ("a/b/+", 2),
        ("a/secret", NOTHING),
        ("+/b", 0),
        ("#", 0),
        ("b/x", 1),
        ("b/+", 1),
        ("b/#", NOTHING),
        ("c", 0),
        ("d/x", 0),
        ("d/#", 0),
        ("plain", NOTHING),
    ],
)
def test_a_subscription_is_within_one_filter_or_meets_what_may_be_received(
    filter: str, granted: int
) -> None:
    """`subscribe` grants filters that it holds, `receive` whatever brings something."""
    assert rights_of(parse_toml(LIMITED, "acl.toml"), "ann", "c").granted_qos(filter) == granted


def test_deny_of_one_direction_leaves_the_other() -> None:
    text = '[roles.r]\nusers = ["*"]\npublish = ["t", "s"]\nreceive = ["t", "s"]\n'
    rules = parse_toml(text + 'deny_publish = ["s"]\ndeny_receive = ["t"]\n', "acl.toml")
    rights = rights_of(rules, "ann", "c")
    assert rights.decide("s") == RECEIVE
    assert rights.decide("t") == RECEIVE - 1


def test_roles_add_up_and_what_one_denies_none_allows() -> None:
    text = """
    [roles.one]
    users = ["ann"]
    publish = ["a"]
    deny = ["c"]
    [roles.two]
    users = ["ann", "bob"]
    publish = ["b", "c"]
    [roles.token]
    publish = ["t"]
    """
    rules = parse_toml(text, "acl.toml")
    ann, bob = rights_of(rules, "ann", "x"), rights_of(rules, "bob", "x")
    assert [bool(ann.decide(topic)) for topic in "abct"] == [True, True, False, False]
    assert [bool(bob.decide(topic)) for topic in "abct"] == [False, True, True, False]
    told = rules.rights(Principal("bob", ("token", "unheard of")), "x")
    assert [bool(told.decide(topic)) for topic in "abct"] == [False, True, True, True]


@pytest.mark.parametrize(
    "rules",
    [
        parse_toml('[roles.a]\nanonymous = true\npublish = ["%c/#"]\nreceive = ["%c/#"]', "r"),
        parse_acl("pattern readwrite %c/#", "acl"),
    ],
)
def test_what_begins_with_a_name_is_nothing_of_the_brokers_own(rules: Rules) -> None:
    """Any client may call itself `$SYS`."""
    rights = rights_of(rules, None, "$SYS")
    assert rights.decide("$SYS/flowguard/clients") == 0
    assert rights.granted_qos("$SYS/#") == NOTHING
    assert rights_of(rules, None, "a$").granted_qos("a$/#") == 2


def test_in_mosquittos_file_are_no_roles_to_be_given() -> None:
    rules = FORMS["mosquitto"]
    for role in ("user ann", "anonymous"):
        rights = rules.rights(Principal("eve", (role,)), "c")
        assert not rights.may_receive("ann/in/a")
        assert not rights.may_receive("news/a")


def test_nobody_has_a_role_that_was_not_given() -> None:
    rules = parse_toml('[roles.r]\nusers = ["ann"]\npublish = ["#"]\n', "acl.toml")
    for user in (None, "bob", "*", ""):
        assert rights_of(rules, user, "c").decide("a") == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("topic", "line 1: expected user NAME"),
        ("user", "line 1: expected user NAME"),
        ("\ntopic frobnicate a", "line 2: expected user NAME"),
        ("topics read a", "line 1: expected"),
        ("topic read a/#/b", "line 1: 'a/#/b' is no topic filter"),
        ("pattern write a+", "'a\\+' is no topic filter"),
    ],
)
def test_a_wrong_acl_file_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^acl, .*{complaint}"):
        parse_acl(text, "acl")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "acl.toml: roles: is missing"),
        ("roles = 1", "acl.toml: roles"),
        ("[roles.r]\npublich = []", "acl.toml: roles.r.publich: unknown key; did you mean publish"),
        ("[roles.r]\nclas = 'device'", "acl.toml: roles.r.clas: unknown key; did you mean class"),
        ("[roles.r]\nx = 1", "acl.toml: roles.r.x: unknown key; known are users, anonymous, pub"),
        ("[roles.r]\npublish = [{topik = 'a'}]", "acl.toml: roles.r.publish.0.topic: is missing"),
        ("[roles.r]\npublish = [{topic = 'a', will = true, q = 1}]", "known are topic, qos_max, r"),
        ("[roles.r]\nwindow_max = true", "roles.r.window_max: a number is expected, and not"),
        ("[[roles]]", "acl.toml: roles: a table is expected"),
        ("[roles.r]\npublish = 'a'", "acl.toml: roles.r.publish"),
        ("[roles.r]\npublish = [{topic = 'a', qos_max = 3}]", "roles.r.publish.0.qos_max"),
        ("[roles.r]\nsubscribe = ['a/#/b']", "roles.r.subscribe: 'a/#/b' is no topic filter"),
        ("[roles.r]\ndeny = ['']", "roles.r.deny: '' is no topic filter"),
        ("[roles", "acl.toml is not valid TOML"),
        ("roles = " + "[" * 10_000, "acl.toml is not valid TOML"),
    ],
)
def test_a_wrong_toml_file_is_refused_with_its_key(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_toml(text, "acl.toml")


def test_limit_of_a_role_is_divided_between_workers() -> None:
    text = "[roles.sensor]\nanonymous = true\nconnections_max = {}\n"
    for total, part in ((10, 2), (4, 1), (0, 0)):
        rules = parse_toml(text.format(total), "acl.toml")
        rules.divide(4)
        (role,) = rules.roles_of(None)
        assert [each.connections_max for each in role.quotas.headcounts] == [part]
    with pytest.raises(ConfigError, match="role sensor: 3 cannot be divided between 4 workers"):
        parse_toml(text.format(3), "acl.toml").divide(4)
