"""Rules from an ACL file of Mosquitto (mosquitto.conf(5), `acl_file`).

    topic read news/#                 # clients without a user name
    user ann                          # the following lines are for this user
    topic readwrite ann/#
    topic deny ann/secret
    pattern write devices/%u/up/#     # all clients; %u and %c are their names

The `topic` lines of a client go before patterns; among them, `deny` lines go first. `read` means to
receive: a client may subscribe to any filter that matches a topic it may read. Only `pattern` lines
replace %u and %c by names; `topic` lines take them literally.
"""

from typing import Final

from flowguard.access.rights import PUBLISH, RuleStage, Statement
from flowguard.access.rules import Role, Rules, levels_of
from flowguard.errors import ConfigError
from flowguard.lines import BLANKS, lines_of

ACCESS: Final = ("read", "write", "readwrite", "deny")
ANONYMOUS: Final = "anonymous"
PATTERNS: Final = "patterns"
EXPECTED: Final = "expected user NAME, or topic or pattern [read|write|readwrite|deny] TOPIC"


def parse_acl(text: str, name: str) -> Rules:
    """Read the lines of a file called `name`; raises ConfigError with the number of a line."""
    anonymous = RuleStage([], [])
    users: dict[str, RuleStage] = {}
    patterns = RuleStage([], [])
    current = anonymous
    for number, line in enumerate(lines_of(text), start=1):
        stripped = line.strip(BLANKS)
        if not stripped or stripped.startswith("#"):
            continue
        where = f"{name}, line {number}"
        keyword, _, rest = stripped.partition(" ")
        rest = rest.strip(BLANKS)
        if not rest or keyword not in ("user", "topic", "pattern"):
            raise ConfigError(f"{where}: {EXPECTED}")
        if keyword == "user":
            current = users.setdefault(rest, RuleStage([], []))
        else:
            is_pattern = keyword == "pattern"
            stage = patterns if is_pattern else current
            _add(stage, rest, where, f"{where}: {stripped}", is_literal=not is_pattern)
    roles = [Role(f"user {user}", [stage]) for user, stage in users.items()]
    roles.append(Role(ANONYMOUS, [anonymous]))
    roles.append(Role(PATTERNS, [RuleStage([], []), patterns]))  # The second stage.
    by_user = {user: [f"user {user}"] for user in users}
    # A role granted elsewhere could be that of another user.
    named, nobodys = [PATTERNS], [ANONYMOUS, PATTERNS]
    return Rules(roles, by_user, named, nobodys, are_names_known=False)


def _add(stage: RuleStage, rest: str, where: str, origin: str, *, is_literal: bool) -> None:
    access, _, topic = rest.partition(" ")
    if not topic:
        access, topic = "readwrite", access
    if access not in ACCESS:
        raise ConfigError(f"{where}: {EXPECTED}")
    levels = levels_of(topic.strip(BLANKS), where)
    if access == "deny":
        stage.denied.append(
            Statement(levels, PUBLISH, is_received=True, is_literal=is_literal, origin=origin)
        )
    else:
        published = 0 if access == "read" else PUBLISH
        reads = access != "write"
        stage.allowed.append(
            Statement(
                levels,
                published,
                is_received=reads,
                wide=True,
                is_literal=is_literal,
                origin=origin,
            )
        )
