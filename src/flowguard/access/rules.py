"""Rules: the roles of a client, and the rights that follow from them.

Statements may contain names of their client: `%u` is its user name, `%c` its client id. A name that
is empty or contains `/`, `+` or `#` could reach topics of others, and so could one that begins a
topic with `$`. For such a name, the statement allows nothing, but what it denies stays denied.
"""

from collections.abc import Sequence
from typing import Final, final

from flowguard.access.filters import is_filter
from flowguard.access.rights import (
    NO_QUOTAS,
    PLACE_BYTES,
    STATEMENT_BYTES,
    Principal,
    Quotas,
    Rights,
    RuleStage,
    Statement,
)
from flowguard.errors import ConfigError

USER: Final = "%u"
CLIENT_ID: Final = "%c"
UNSAFE: Final = frozenset("/+#\0")


@final
class Role:
    """Statements for all clients with this role; `stages` in order of precedence."""

    __slots__ = ("is_application", "name", "quotas", "stages")

    def __init__(
        self,
        name: str,
        stages: list[RuleStage],
        quotas: Quotas = NO_QUOTAS,
        is_application: bool | None = None,
    ) -> None:
        self.name = name
        self.is_application = is_application
        """True if its clients are applications, or None if it does not set this."""
        self.quotas = quotas
        self.stages = stages


@final
class Rules:
    """The roles of users, of all clients with a name, and of clients without one."""

    __slots__ = ("_anonymous", "_are_names_known", "_by_user", "_named", "_roles", "version")

    def __init__(
        self,
        roles: Sequence[Role],
        by_user: dict[str, list[str]],
        named: Sequence[str],
        anonymous: Sequence[str],
        *,
        are_names_known: bool = True,
    ) -> None:
        """Take the names of roles: of each user, of all users, and of clients without principal.

        `are_names_known`: a principal may bring further roles by name.
        """
        self._are_names_known = are_names_known
        self._roles = {role.name: role for role in roles}
        self._by_user = by_user
        self._named = list(named)
        self._anonymous = list(anonymous)
        self.version = 1
        """Version, which grows each time the rules are replaced."""

    def __len__(self) -> int:
        return len(self._roles)

    def divide(self, count: int) -> None:
        """Reduce the limits on all clients of a role to the share of one of `count` workers.

        Raises ConfigError if a limit is too small for that.
        """
        for role in self._roles.values():
            for headcount in role.quotas.headcounts:
                total = headcount.connections_max
                if 0 < total < count:
                    raise ConfigError(
                        f"connections_max of role {role.name}: {total:,} cannot be divided between "
                        f"{count} workers: raise it, or lower node.workers"
                    )
                headcount.connections_max = total // count

    def roles_of(self, principal: Principal | None) -> list[Role]:
        """Return the roles of a client, each once; unknown names give no rights."""
        if principal is None:
            names = self._anonymous
        else:
            brought = principal.roles if self._are_names_known else ()
            names = [*self._by_user.get(principal.user, []), *brought, *self._named]
        return [self._roles[name] for name in dict.fromkeys(names) if name in self._roles]

    def rights(self, principal: Principal | None, client_id: str) -> Rights:
        """Return the rights of a client. The stages of its roles are merged by position."""
        roles = self.roles_of(principal)
        user = "" if principal is None else principal.user
        stages: list[RuleStage] = []
        size_bytes = 0
        for index in range(max([len(role.stages) for role in roles], default=0)):
            parts = [role.stages[index] for role in roles if index < len(role.stages)]
            if len(parts) == 1 and not _has_names(parts[0]):
                stages.append(parts[0])
                continue
            allowed: list[Statement] = []
            denied: list[Statement] = []
            for part in parts:
                for each in part.allowed:
                    own = _for_client(each, user, client_id, denies=False)
                    if own is not None:
                        allowed.append(own)
                        size_bytes += PLACE_BYTES if own is each else STATEMENT_BYTES
                for each in part.denied:
                    own = _for_client(each, user, client_id, denies=True)
                    if own is not None:
                        denied.append(own)
                        size_bytes += PLACE_BYTES if own is each else STATEMENT_BYTES
            stages.append(RuleStage(allowed, denied))
        quotas = roles[0].quotas if roles else NO_QUOTAS
        for role in roles[1:]:
            if role.quotas is not NO_QUOTAS:
                quotas = quotas.with_more(role.quotas)
        rights = Rights(principal, client_id, stages, size_bytes, self.version, quotas)
        said = [role.is_application for role in roles if role.is_application is not None]
        rights.is_application = said[0] if said else None
        return rights


def levels_of(filter: str, where: str) -> list[str]:
    """Return the levels of a filter in a rules file; raises ConfigError that begins with
    `where`."""
    levels = filter.split("/")
    if not is_filter(levels):
        raise ConfigError(
            f"{where}: {filter!r} is no topic filter: a wildcard fills its level, # is the last one"
        )
    return levels


def _has_names(stage: RuleStage) -> bool:
    return any([_names(each) for each in stage.allowed + stage.denied])


def _names(statement: Statement) -> bool:
    if statement.is_literal:
        return False
    return any([USER in level or CLIENT_ID in level for level in statement.levels])


def _for_client(
    statement: Statement, user: str, client_id: str, *, denies: bool
) -> Statement | None:
    """Return the statement with the client's names, or None if it cannot apply to the client."""
    levels = statement.levels
    if not _names(statement):
        return statement
    for placeholder, name in ((USER, user), (CLIENT_ID, client_id)):
        if any([placeholder in level for level in levels]) and not _is_safe(name) and not denies:
            return None
    filled: list[str] = []
    for level in levels:
        filled += _filled(level, user, client_id).split("/")
    if filled[0].startswith("$") and not levels[0].startswith("$") and not denies:
        return None
    return statement.with_levels(filled)


def _filled(level: str, user: str, client_id: str) -> str:
    """Return a level with both names; placeholders inside of names are not replaced."""
    return client_id.join([part.replace(USER, user) for part in level.split(CLIENT_ID)])


def _is_safe(name: str) -> bool:
    return bool(name) and not any([character in UNSAFE for character in name])
