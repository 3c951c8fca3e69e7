"""Hooks for tests: an authenticator that answers the same to all, a method of two steps."""

from dataclasses import dataclass

from flowguard.codec.packets import Connect
from flowguard.node.authentication import Accept, Proceed, Step
from flowguard.types import ReasonCode


@dataclass
class SameVerdict:
    """An authenticator that answers the same to everybody."""

    reason: ReasonCode

    def authenticate(self, connect: Connect) -> ReasonCode:
        return self.reason


class TwoSteps:
    """An authentication method that wants one AUTH after CONNECT."""

    def __init__(self, connect: Connect) -> None:
        self.steps = 0

    def step(self, data: bytes | None) -> Step:
        self.steps += 1
        return Proceed(b"challenge") if self.steps == 1 else Accept(b"welcome")
