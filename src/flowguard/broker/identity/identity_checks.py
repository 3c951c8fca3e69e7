"""IdentityChecks: authenticate the client of a CONNECT, outside the loop.

A password hash costs more than the rest of a connection, so it runs in a thread
(`broker.identity.hashers`), one at a time. Meanwhile the CONNECT counts as in process, and the
connect gate limits the number of waiting checks. The thread also checks token signatures. SCRAM
costs only a few hashes, so it runs in the loop. Successful checks are remembered, and an address
with too many failures is not checked any more.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import time
from typing import TYPE_CHECKING, Final, NamedTuple, final

import trio

from flowguard.access.rights import Principal
from flowguard.broker.identity.hashers import Hashers
from flowguard.broker.identity.scram_exchange import ScramExchange
from flowguard.broker.logs.error_log import BoundedLog
from flowguard.broker.sockets.link import LOCAL, Link
from flowguard.codec.packets import Connect
from flowguard.errors import UnprovedError
from flowguard.identity.failures import BURST, REFILL_S, FailureLimit, origin_of
from flowguard.identity.remembered import RememberedPasswords, RememberedTokens
from flowguard.lines import read
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import CheckOutcome, Door
from flowguard.node.connect.authentication import CheckAnswer, ExchangeMaker
from flowguard.session.connection import ServerConnection
from flowguard.types import ReasonCode

if TYPE_CHECKING:
    from flowguard.identity.passwords import PasswordFile
    from flowguard.identity.tokens import TokenFile

QUESTIONS_MAX: Final = 10_000
"""Maximum number of waiting checks. The gate admits far fewer at once; the others belong to clients
that have left, and are skipped."""
TOKEN: Final = "token"
NAMELESS: Final = "it says no user name, and has no certificate"
LIMITED: Final = "too many wrong passwords from its address"
SCRAM: Final = "SCRAM-SHA-256"


@dataclass(frozen=True, slots=True)
class Proofs:
    """Users and keys as last read from their files, or None without such a file."""

    users: "PasswordFile | None" = None
    tokens: "TokenFile | None" = None


class _Question(NamedTuple):
    connection: ServerConnection
    user: str | None
    password: bytes
    is_token: bool
    address: str
    answer: CheckAnswer


@final
class IdentityChecks:
    """Checks user names, passwords and tokens (`node.connect.authentication.Checker`)."""

    def __init__(
        self, network: NetworkSettings, key: bytes, clock: Callable[[], float], *, anonymous: bool
    ) -> None:
        """`network` names the files; `anonymous`: clients without a name may connect, too.

        Raises ConfigError, and ModuleNotFoundError if a package for the files is missing.
        """
        self._network = network
        self.clock = clock
        self._anonymous = anonymous
        self._proofs = self.read()
        self._passwords = RememberedPasswords(key)
        self._tokens = RememberedTokens(key)
        self._failures = FailureLimit()
        self.limit_log = BoundedLog("address limited after wrong passwords")
        self._questions: deque[_Question] = deque()
        self._asked = trio.Event()
        self._door = Door()

    @property
    def asks(self) -> bool:
        """True if clients must prove their identity by more than a certificate."""
        return self._network.asks

    def read(self) -> Proofs:
        """Read users and keys from the files. Raises ConfigError, ModuleNotFoundError."""
        users = None
        if (path := self._network.password_file) is not None:
            from flowguard.identity.passwords import PasswordFile

            users = PasswordFile.read(path)
        return Proofs(users, read_tokens(self._network))

    def use(self, proofs: Proofs) -> None:
        """Use these users and keys from now on; forget checks by others."""
        if proofs.tokens != self._proofs.tokens:
            self._tokens.forget()
        self._proofs = proofs

    def check(
        self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
    ) -> None:
        """Call `answer` with SUCCESS or the reason for a rejection, now or later."""
        user, password = connect.username, connect.password
        is_token = self._wants_token(connection)
        is_asked = self._proofs.tokens is not None if is_token else self._proofs.users is not None
        says_nothing = user is None and not (is_token and password is not None)
        if says_nothing or not is_asked:  # Without a check the name proves nothing.
            proved = _certificate_name(connection)
            connection.principal = None if proved is None else Principal(proved)
            may = proved is not None or self._anonymous
            self._count(CheckOutcome.ANONYMOUS if proved is None else CheckOutcome.CERTIFICATE)
            if may:
                answer(ReasonCode.SUCCESS, now_s, "")
            else:
                answer(ReasonCode.NOT_AUTHORIZED, now_s, NAMELESS)
            return
        password = password or b""
        known = self._known(user, password, now_s, is_token=is_token)
        if known is not None:
            connection.principal = known
            self._count(CheckOutcome.REMEMBERED)
            answer(ReasonCode.SUCCESS, now_s, "")
            return
        address = _address(connection)
        if not self._failures.allows(address, now_s):
            self._count(CheckOutcome.LIMITED)
            answer(ReasonCode.BAD_USER_NAME_OR_PASSWORD, now_s, LIMITED)
        elif len(self._questions) >= QUESTIONS_MAX:
            self._count(CheckOutcome.BUSY)
            answer(ReasonCode.SERVER_BUSY, now_s, "")
        else:
            self._questions.append(_Question(connection, user, password, is_token, address, answer))
            self._asked.set()

    def _wants_token(self, connection: ServerConnection) -> bool:
        link = connection.transport
        wanted = None
        if isinstance(link, Link) and link.doorway is not None:
            wanted = link.doorway.settings.password_is
        return (wanted or self._network.proof) == TOKEN

    def _known(
        self, user: str | None, password: bytes, now_s: float, *, is_token: bool
    ) -> Principal | None:
        """Return the principal if the same proof was accepted lately."""
        if is_token:
            return self._tokens.whose(password, user, now_s)
        users = self._proofs.users
        hashed = users.hashes.get(user) if user is not None and users is not None else None
        if user is None or hashed is None or not self._passwords.knows(user, password, hashed):
            return None
        return Principal(user)

    @property
    def methods(self) -> dict[str, ExchangeMaker]:
        """The methods of enhanced authentication, by their names."""
        return {SCRAM: self._scram}

    def _scram(self, connection: ServerConnection, connect: Connect) -> ScramExchange | None:
        users = self._proofs.users
        if users is None or not users.has_scram or self._wants_token(connection):
            return None
        from flowguard.identity.scram import ScramServer

        return ScramExchange(ScramServer(users.scram), self, connection, connect)

    def allows(self, connection: ServerConnection, now_s: float) -> bool:
        """True if the address of a connection may fail once more."""
        return self._failures.allows(_address(connection), now_s)

    def judged(self, connection: ServerConnection, outcome: CheckOutcome, now_s: float) -> None:
        if outcome is CheckOutcome.WRONG:
            self._failed(_address(connection), now_s)
        self._count(outcome)

    async def run(
        self,
        door: Door,
        hashers: Hashers,
        on_answer: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """Check one question after the other until cancelled; `on_answer` is called after each.

        Outcomes are counted in the accept state. A check that fails with an error is passed to
        `on_error`, rejects its client, and affects no other one.
        """
        self._door = door
        with hashers:
            while True:
                await self._asked.wait()
                self._asked = trio.Event()
                while self._questions:
                    question = self._questions.popleft()
                    if question.connection.ended:
                        self._count(CheckOutcome.LEFT)
                        continue
                    await self._judge(question, hashers, on_error)
                    on_answer()

    async def _judge(
        self, question: _Question, hashers: Hashers, on_error: Callable[[BaseException], None]
    ) -> None:
        proofs = self._proofs
        try:
            principal = await hashers.do(partial(_judged, question, proofs, time()))
            if principal.expires_at_s is not None:  # The broker's clock may differ from UTC.
                principal.expires_at_s += self.clock() - time()
        except UnprovedError as error:
            self._refuse(question, str(error))
        except Exception as error:
            on_error(error)
            self._refuse(question, "it could not be checked")
        else:
            self._let_in(question, principal, proofs)

    def _let_in(self, question: _Question, principal: Principal, proofs: Proofs) -> None:
        question.connection.principal = principal
        if question.is_token:
            if proofs.tokens == self._proofs.tokens:
                self._tokens.add(question.password, principal)
        elif proofs.users is not None:
            user = principal.user
            self._passwords.add(user, question.password, proofs.users.hashes[user])
        self._count(CheckOutcome.RIGHT)
        question.answer(ReasonCode.SUCCESS, self.clock(), "")

    def _refuse(self, question: _Question, why: str) -> None:
        now_s = self.clock()
        self._failed(question.address, now_s)
        self._count(CheckOutcome.WRONG)
        question.answer(ReasonCode.BAD_USER_NAME_OR_PASSWORD, now_s, why)

    def _failed(self, address: str, now_s: float) -> None:
        if self._failures.failed(address, now_s) and self.limit_log.may_show("addresses"):
            self.limit_log.show(
                address=address or LOCAL,
                effect="its passwords are rejected without a check, except one per "
                f"{REFILL_S:.0f} s; passwords that were right before still connect",
                ends=f"{BURST * REFILL_S:.0f} s after its last wrong password",
            )

    def _count(self, outcome: CheckOutcome) -> None:
        self._door.checks[outcome] += 1


def _judged(question: _Question, proofs: Proofs, now_s: float) -> Principal:
    """Authenticate a client, in a thread; raises UnprovedError."""
    if question.is_token:
        if proofs.tokens is None:
            raise UnprovedError("there are no keys any more")
        return proofs.tokens.verify(question.password, question.user, now_s)
    user, users = question.user, proofs.users
    if user is None or users is None or not users.verify(user, question.password):
        raise UnprovedError("")  # Even the log must not reveal which names exist.
    return Principal(user)


def read_tokens(network: NetworkSettings) -> "TokenFile | None":
    """Read the keys of tokens, if any. Raises ConfigError, ModuleNotFoundError without PyJWT."""
    path, audience = network.token_keys, network.token_audience
    if path is None or audience is None:
        return None
    from flowguard.identity.tokens import TokenFile

    issuer, roles_claim = network.token_issuer, network.token_roles_claim
    return TokenFile.parse(read(path), str(path), audience, issuer, roles_claim)


def _certificate_name(connection: ServerConnection) -> str | None:
    """Return the name in the client's accepted certificate, or None."""
    link = connection.transport
    return link.layer.identity if isinstance(link, Link) and link.layer is not None else None


def _address(connection: ServerConnection) -> str:
    """Return the address for which failures count."""
    link = connection.transport
    return origin_of(link.peer().rpartition(":")[0]) if isinstance(link, Link) else ""
