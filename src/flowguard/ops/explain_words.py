"""An explanation in sentences, for people."""

from datetime import datetime
from typing import Final

from flowguard.flow import Reason
from flowguard.lines import count
from flowguard.ops.common.explanation import LastEnd
from flowguard.ops.condition import NO_ROOM
from flowguard.ops.explain import Explanation, FromLog
from flowguard.ops.lists.flapping import FLAPS_MIN

DROPS: Final = {
    Reason.OFFLINE_QOS_0: "QoS 0 messages, because it is not connected",
    Reason.QUEUE_MESSAGES: "QoS 1 and 2 messages, because its queue has its maximum of messages",
    Reason.QUEUE_BYTES: "QoS 1 and 2 messages, because its queue has its maximum of bytes",
    Reason.NODE_QUEUE_BYTES: "QoS 1 and 2 messages, because all queues together are full, and "
    "its queue has its share",
    Reason.NODE_DISK_QUEUE_BYTES: "QoS 1 and 2 messages, because all queues on the disk "
    "together are full, and its queue has its share",
    Reason.OUTBOX_BYTES: "QoS 0 messages, because it does not read fast enough",
    Reason.NODE_OUTBOX_BYTES: "QoS 0 messages, because too many bytes wait for all slow clients",
}


def sentences(explanation: Explanation) -> list[str]:
    """Return the sentences with the most important ones first."""
    client_id, connected = explanation["client_id"], explanation["connected"]
    now_s = explanation["now_s"]
    if connected is None:
        ends_s = explanation["session_ends_s"]
        until = "" if ends_s is None else f" until {clock_text(ends_s, now_s)}"
        found = [f"{client_id} is not connected; its session is kept{until}."]
    else:
        origin = f" from {connected['address']}" if connected["address"] else ""
        found = [f"{client_id} is connected{origin} (MQTT {connected['protocol']})."]
    if explanation["client_class"] == "application":
        found.append("It is an application: its queue has no limit.")
    if explanation["damage"]:
        found.append(
            f"A part of its queue cannot be read: {explanation['damage']}. "
            "The client is disconnected when delivery reaches that part."
        )
    found += [f"It is paused: {pause['text']}." for pause in explanation["paused"]]
    if connected is not None and not explanation["paused"]:
        found.append("It is not paused: its packets are processed at once.")
    found += _undelivered(explanation)
    found += [f"Dropped for it now: {_drop(reason)}." for reason in explanation["dropped"]]
    if (rejected := explanation["rejected"]) is not None:
        found.append(
            f"Rejected and dropped: {count(rejected['messages'], 'message')} that it published, "
            f"the last one at {clock_text(rejected['at_s'], now_s)} to {rejected['topic']} "
            f"({rejected['reason']})."
        )
    found += _identity(explanation)
    found += window_sentences(explanation["window"], explanation["why"])
    return found


def _identity(explanation: Explanation) -> list[str]:
    """Return its user, roles and filters, and the end of its former connection."""
    found, connected, now_s = [], explanation["connected"], explanation["now_s"]
    if connected is not None:
        found.append(f"It has been connected since {clock_text(connected['since_s'], now_s)}.")
    if explanation["user"]:
        found.append(f"Its user is {explanation['user']}.")
    if explanation["roles"]:
        found.append(f"It has the roles {', '.join(explanation['roles'])}.")
    if explanation["filters"]:
        more = explanation["subscriptions"]["used"] - len(explanation["filters"])
        rest = f" and {more:,} more" if more > 0 else ""
        found.append(f"It subscribes to {', '.join(explanation['filters'])}{rest}.")
    return found + end_sentences(explanation["last_end"], now_s)


def end_sentences(end: LastEnd | None, now_s: float) -> list[str]:
    """Return how the last connection of a client ended, if it is known, and whether its connections
    do so again and again."""
    if end is None:
        return []
    why = f" ({end['why']})" if end["why"] else ""
    origin = f" from {end['address']}" if end["address"] else ""
    at = clock_text(end["at_s"], now_s)
    found = [
        f"The {end['by']} ended its last connection{origin} at {at}, after "
        f"{end['lasted_s']:,.0f} s: {end['reason']}{why}."
    ]
    if end["row_count"] >= FLAPS_MIN:
        found.append(f"{end['row_count']:,} of its connections ended within {end['row_s']:,.0f} s.")
    return found


def window_sentences(window: float, why: str) -> list[str]:
    """Return the state of a full store, and the window of each client."""
    found = []
    if why.startswith(NO_ROOM):
        found.append(f"{NO_ROOM[0].upper()}{NO_ROOM[1:]}.")
        why = why.removeprefix(NO_ROOM).removeprefix("; ")
    packets = count(round(window), "packet") if window >= 1 else "less than 1 packet"
    if why:
        found.append(f"The window of each client is {packets} ({why}).")
    return found


def _drop(reason: str) -> str:
    """Return what is dropped, or the name of a reason that this version does not know."""
    return next((words for known, words in DROPS.items() if known == reason), reason)


def _undelivered(explanation: Explanation) -> list[str]:
    """Return why it gets nothing, and the progress of its backlog on disk."""
    waiting, text = explanation["queue_messages"]["used"], explanation["undelivered"]["text"]
    in_log = explanation["in_log"]
    many = "No message waits for it" if in_log is None else "No message waits in its queue"
    if waiting:
        many = f"{count(waiting, 'message')} {'waits' if waiting == 1 else 'wait'} for it"
    found = [f"{many}: {text}."]
    on_disk = explanation["on_disk"]
    if on_disk is not None:
        per_s = on_disk["per_s"]
        place = "In Kafka" if on_disk["is_in_kafka"] else "On the disk"
        rate = "" if per_s is None else f"; {per_s:,.0f} are read per second"
        found.append(
            f"{place}: {on_disk['messages']:,} of them, read up to position "
            f"{on_disk['read_pos']:,} of {on_disk['last_pos']:,}{rate}."
        )
    if in_log is not None:
        least = "" if in_log["is_complete"] else "at least "
        found.append(f"In the durable log: {least}{count(in_log['messages'], 'message')} for it.")
    log = explanation["log"]
    if log is not None:
        found.append(_from_log(log, explanation["now_s"]))
    return found


def _from_log(log: FromLog, now_s: float) -> str:
    rest = ", all that it missed"
    if log["goes_on"]:
        rest = f"; it has read what was published up to {now_s - log['until_s']:,.0f} s ago"
    lost = f" Retention had deleted {log['lost']:,} before." if log["lost"] else ""
    return f"{count(log['messages'], 'message')} came from the durable log{rest}.{lost}"


def clock_text(at_s: float, now_s: float) -> str:
    """Return the time of day, with the date if it is not that of `now_s`."""
    at = datetime.fromtimestamp(at_s)
    is_today = at.date() == datetime.fromtimestamp(now_s).date()
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
