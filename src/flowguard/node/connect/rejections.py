"""Rejections: reasons to reject an authenticated client before it takes its client id."""

from dataclasses import dataclass
from typing import Final

from flowguard.access.rights import Rights
from flowguard.codec.packets import Connect
from flowguard.flow import Reason
from flowguard.node.connect.parts import ConnectParts
from flowguard.records import WillRecord
from flowguard.session.handshake import session_expiry_s
from flowguard.types import MQTT_5, ReasonCode

STORE_FULL: Final = "the store is full"
WILL_REFUSED: Final = "its user may not publish to the topic of its will"
AWAY: Final = "the store of applications is unavailable"
NOT_ITS_OWN: Final = "its session belongs to another user (session.bound_to_user)"
USER_FULL: Final = "its role has reached its limit of clients"


@dataclass(frozen=True, slots=True)
class Claimant:
    """A client that wants a client id."""

    client_id: str
    user: str | None
    proved: str
    """The user name if it is proved, or ""."""
    rights: Rights | None
    will: WillRecord | None


def rejection_of(
    parts: ConnectParts, packet: Connect, claimant: Claimant
) -> tuple[ReasonCode, str] | None:
    """Return the reason code and the reason if a client must be rejected, else None."""
    code = _will_refusal(parts, claimant)
    if code is not None:
        return code, WILL_REFUSED
    session = parts.registry.sessions.get(claimant.client_id)
    owner = "" if session is None else session.user
    if owner not in ("", claimant.proved) and parts.state.settings.session.bound_to_user:
        return ReasonCode.NOT_AUTHORIZED, NOT_ITS_OWN
    if _is_away(parts, packet, claimant):
        return ReasonCode.SERVER_UNAVAILABLE, AWAY
    why = _no_place(parts, packet, claimant)
    return (ReasonCode.QUOTA_EXCEEDED, why) if why else None


def _will_refusal(parts: ConnectParts, claimant: Claimant) -> ReasonCode | None:
    """Return the reason code if a client may not leave its will, else None."""
    will = claimant.will
    if will is None:
        return None
    if not parts.hooks.may_leave(will.message, claimant.client_id, claimant.rights):
        return ReasonCode.NOT_AUTHORIZED
    return parts.router.plans.refusal(will.message.topic)


def _is_away(parts: ConnectParts, packet: Connect, claimant: Claimant) -> bool:
    """Return True if a client needs the store of applications, and that is unavailable."""
    lane, client_id = parts.router.lane, claimant.client_id
    if not lane.is_closed:
        return False
    if client_id in lane.names:
        return True
    is_v5 = packet.version == MQTT_5
    keeps = packet.properties.session_expiry_interval if is_v5 else not packet.clean_start
    return bool(keeps) and parts.router.applications.is_application(
        client_id, claimant.user, claimant.rights
    )


def _no_place(parts: ConnectParts, packet: Connect, claimant: Claimant) -> str:
    """Return the reason if a client or its durable session exceeds a limit, else "".

    The slot of a connection that it takes over counts as free.
    """
    session, rights = parts.registry.sessions.get(claimant.client_id), claimant.rights
    before = None if session is None else session.rights
    if rights is not None and rights.is_full_beside(before):
        parts.state.counters.turn_away(Reason.ROLE_CONNECTIONS_MAX)
        return USER_FULL
    is_kept = session is not None and session.durable
    resumes = session is not None and session.expiry_interval_s > 0 and not packet.clean_start
    if not resumes and not session_expiry_s(packet, parts.state.settings.session):
        return ""
    # A client takes its messages out of a full store, if its CONNECT can be stored.
    if parts.state.read_only and (not is_kept or parts.journal.is_refused):
        parts.state.counters.drop(Reason.STORE_FULL)
        return STORE_FULL
    if is_kept or parts.registry.kept_count < parts.state.bounds.sessions_max:
        return ""
    parts.state.counters.turn_away(Reason.SESSIONS_MAX)
    return f"{parts.state.bounds.sessions_max:,} sessions are kept: node.sessions_max"
