"""Start time: a SUBSCRIBE may request earlier messages that are in the durable log.

The user property `start-time` of SUBSCRIBE is in milliseconds since the Unix epoch, or negative for
a time before now.
"""

from collections.abc import Callable
from typing import Final, Protocol

from flowguard.node.connect.authentication import Authorizer
from flowguard.routing import parse_shared
from flowguard.session.node_state import NodeState
from flowguard.session.session import Session
from flowguard.types import Properties, ReasonCode, SubscriptionOptions

START_TIME: Final = "start-time"
DIGITS_MAX: Final = 15
"""Maximum number of digits of the milliseconds: 30,000 years."""

Refusal = tuple[ReasonCode, str]
"""Reason code of one filter, and a text that explains it."""
UNREADABLE: Final = (
    ReasonCode.UNSPECIFIED_ERROR,
    "start-time is a number of milliseconds since 1970-01-01 UTC, or a negative one: before now",
)


class PastAuthorizer(Protocol):
    """An `Authorizer` that also checks subscriptions into the past."""

    def may_subscribe_since(self, client_id: str, filter: str, since_s: float) -> bool:
        """Return False to reject a filter with 0x87; called after `may_subscribe`.

        `since_s` is in seconds since the Unix epoch.
        """


def start_time(properties: Properties, now_s: float) -> float | None:
    """Return the start time of a SUBSCRIBE in seconds since the Unix epoch, or None if it has none.

    Raises `ValueError` if it is no number. If there are several, the last one counts.
    """
    text = dict(properties.user_properties).get(START_TIME)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise ValueError(f"{START_TIME} {text[:20]!r} is no number of milliseconds")
    at_s = int(digits) / 1_000
    return now_s - at_s if text.startswith("-") else at_s


def refusal(
    node: NodeState,
    authorizer: Authorizer | None,
    session: Session,
    filter: str,
    asked: SubscriptionOptions,
    since_s: float,
    *,
    has_log: bool,
    has_peers: bool,
) -> Refusal | None:
    """Return the reason if a filter cannot be subscribed from `since_s` on, else None.

    If `has_peers`, there are other nodes. Each logs messages for its own sessions only, so older
    ones would be missing.
    """
    code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    if has_peers:
        return code, "start-time is not available with several workers"
    if parse_shared(filter) is not None:
        return code, "start-time is not for shared subscriptions"
    if not has_log:
        return code, "start-time: nothing is logged here (session.log_threshold is 0)"
    if not session.durable:
        return code, "start-time needs a Session Expiry Interval above 0: the session is to be kept"
    if not asked.qos:
        return code, "start-time needs QoS 1 or 2"
    forbidden = ReasonCode.NOT_AUTHORIZED, "start-time is not allowed here"
    if not node.settings.session.start_time_available:
        return forbidden
    # Compiled code would take a protocol for the class that it is.
    judge: Callable[[str, str, float], bool] | None
    judge = getattr(authorizer, "may_subscribe_since", None)
    if judge is not None and not judge(session.client_id, filter, since_s):
        return forbidden
    return None
