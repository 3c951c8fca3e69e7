"""PasswordChecks: who a CONNECT is from, asked off the loop.

A hash takes longer than all else that a connection costs together, so it is made in a thread, one
at a time; meanwhile the CONNECT counts as in process, and the gate in front bounds how many wait
here. What was right is remembered, and an address that is wrong too often is not checked any more.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import trio

from flowguard.access.rights import Principal
from flowguard.broker.link import Link
from flowguard.codec.packets import Connect
from flowguard.errors import ConfigError
from flowguard.identity.failures import FailureLimit
from flowguard.identity.remembered import RememberedPasswords
from flowguard.node.authentication import CheckAnswer
from flowguard.node.door import CheckOutcome, Door
from flowguard.session.connection import ServerConnection
from flowguard.types import ReasonCode

if TYPE_CHECKING:
    from flowguard.identity.passwords import PasswordFile

QUESTIONS_MAX: Final = 10_000
"""The gate lets in far fewer at once; the others have left since, and are passed over."""


class _Question(NamedTuple):
    connection: ServerConnection
    user: str
    password: bytes
    address: str
    answer: CheckAnswer


@final
class PasswordChecks:
    """Judges user names and passwords (`node.authentication.Checker`)."""

    def __init__(
        self, path: Path | None, key: bytes, clock: Callable[[], float], *, anonymous: bool
    ) -> None:
        """`path`: the users, None: there are none; `anonymous`: who says no name may come, too.

        Raises ConfigError.
        """
        self._path = path
        self._key = key
        self._clock = clock
        self._anonymous = anonymous
        self._users = self.read()
        self._remembered = RememberedPasswords(key)
        self._failures = FailureLimit()
        self._questions: deque[_Question] = deque()
        self._asked = trio.Event()
        self._door = Door()

    def read(self) -> "PasswordFile | None":
        """Read the users as the file has them now; None: there are none. Raises ConfigError."""
        return None if self._path is None else read_passwords(self._path, self._key)

    def use(self, users: "PasswordFile") -> None:
        """These are the users from now on; what was remembered is forgotten."""
        self._users = users
        self._remembered.forget()

    def check(
        self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
    ) -> None:
        """`answer` is called with SUCCESS or the reason for a refusal, now or later."""
        user, password = connect.username, connect.password or b""
        if user is None or self._users is None:  # Without users a name is only said.
            proved = _certificate_name(connection)
            connection.principal = None if proved is None else Principal(proved)
            may = proved is not None or self._anonymous
            self._count(CheckOutcome.ANONYMOUS if proved is None else CheckOutcome.CERTIFICATE)
            answer(ReasonCode.SUCCESS if may else ReasonCode.NOT_AUTHORIZED, now_s)
            return
        if self._remembered.knows(user, password):
            connection.principal = Principal(user)
            self._count(CheckOutcome.REMEMBERED)
            answer(ReasonCode.SUCCESS, now_s)
            return
        address = _address(connection)
        if not self._failures.allows(address, now_s):
            self._count(CheckOutcome.LIMITED)
            answer(ReasonCode.BAD_USER_NAME_OR_PASSWORD, now_s)
        elif len(self._questions) >= QUESTIONS_MAX:
            self._count(CheckOutcome.BUSY)
            answer(ReasonCode.SERVER_BUSY, now_s)
        else:
            self._questions.append(_Question(connection, user, password, address, answer))
            self._asked.set()

    async def run(self, door: Door, on_answer: Callable[[], None]) -> None:
        """Check one after the other until cancelled; `on_answer` is called after each.

        Outcomes are counted in `door`.
        """
        self._door = door
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            while self._questions:
                question = self._questions.popleft()
                if question.connection.ended:
                    self._count(CheckOutcome.LEFT)
                    continue
                users = self._users
                assert users is not None
                right = await trio.to_thread.run_sync(
                    users.verify, question.user, question.password
                )
                self._judge(question, users, right=right)
                on_answer()

    def _judge(self, question: _Question, users: "PasswordFile", *, right: bool) -> None:
        now_s = self._clock()
        if right:
            question.connection.principal = Principal(question.user)
        if right and users is self._users:
            self._remembered.add(question.user, question.password)
        if not right:
            self._failures.failed(question.address, now_s)
        self._count(CheckOutcome.RIGHT if right else CheckOutcome.WRONG)
        reason = ReasonCode.SUCCESS if right else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        question.answer(reason, now_s)

    def _count(self, outcome: CheckOutcome) -> None:
        self._door.checks[outcome] += 1


def read_passwords(path: Path, key: bytes = b"") -> "PasswordFile":
    """Read a file of users and hashes; raises ConfigError, ModuleNotFoundError without argon2."""
    from flowguard.identity.passwords import PasswordFile

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no file of users and hashes") from error
    return PasswordFile.parse(text, str(path), key)


def _certificate_name(connection: ServerConnection) -> str | None:
    """The name in the client's certificate, which was accepted; None: it has none."""
    link = connection.transport
    return link.layer.identity if isinstance(link, Link) and link.layer is not None else None


def _address(connection: ServerConnection) -> str:
    """The host at the other end."""
    link = connection.transport
    return link.peer().rpartition(":")[0] if isinstance(link, Link) else ""
