"""Hooks for tests: an authenticator that answers the same to all, a method of two steps."""

from dataclasses import dataclass

from flowguard.access.rights import Principal
from flowguard.codec.packets import Connect
from flowguard.node.connect.authentication import Accept, CheckAnswer, Proceed, Step
from flowguard.session.connection import ServerConnection
from flowguard.types import ReasonCode


@dataclass
class SameVerdict:
    """An authenticator with the same answer for all clients."""

    reason: ReasonCode

    def authenticate(self, connect: Connect) -> ReasonCode:
        return self.reason


class SaidNames:
    """A checker that believes what clients say of themselves."""

    def check(
        self, connection: ServerConnection, connect: Connect, now_s: float, answer: CheckAnswer
    ) -> None:
        if connect.username is not None:
            connection.principal = Principal(connect.username)
        answer(ReasonCode.SUCCESS, now_s, "")


class TwoSteps:
    """An authentication method that wants one AUTH after CONNECT."""

    def __init__(self, connection: ServerConnection, connect: Connect) -> None:
        self.steps = 0

    def step(self, data: bytes | None, now_s: float) -> Step:
        self.steps += 1
        return Proceed(b"challenge") if self.steps == 1 else Accept(b"welcome")
