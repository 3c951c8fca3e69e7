"""Options of mosquitto.conf: how Mosquitto 2.0 reads their values, and the settings of flowguard.

Most values are one word, and Mosquitto ignores the rest of the line, such as a comment. Texts, such
as the names of files, reach to the end of the line. This was tested with Mosquitto 2.0.11.
"""

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, final

SPANS_S: Final = {"h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}

Value = str | int | bool
Reader = Callable[[str], Value]


@final
class Unfit(Exception):
    """A line that is not taken; the text is the reason, `closes` the listeners that are left out.

    "own" stands for the listener of the line, or for all if the option applies to all.
    """

    def __init__(self, why: str, closes: Literal["none", "own", "all"] = "none") -> None:
        super().__init__(why)
        self.closes = closes


def unstartable(why: str) -> Unfit:
    """Return an error for a line with which Mosquitto does not start, so it opens no listener."""
    return Unfit(f"{why}: Mosquitto does not start with it", "all")


# --- values ------------------------------------------------------------------------------------


def text(rest: str) -> str:
    """Return the rest of the line; the option may be given only once."""
    if not rest.strip():
        raise unstartable("a value is missing")
    if " #" in rest.strip():
        raise unstartable("a comment behind a text is read as a part of it")
    return rest.strip()


def word(rest: str) -> str:
    """Return the first word."""
    found = rest.strip(" ").partition(" ")[0]
    return found if found else text(found)


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader of one of these words."""

    def read(rest: str) -> str:
        found = word(rest)
        if found not in words:
            raise unstartable(f"one of {', '.join(words)} is expected")
        return found

    return read


def flag(rest: str) -> bool:
    return one_of("true", "1", "false", "0")(rest) in ("true", "1")


def number(low: int, high: int = 2**63, *, zero: str = "") -> Callable[[str], int]:
    """Return a reader of a number as by C's atoi(): a word without digits is 0.

    `zero` is the reason to reject numbers up to 0, if any.
    """

    def read(rest: str) -> int:
        digits = re.match(r"\s*([+-]?[0-9]{1,18})", word(rest))
        found = int(digits[1]) if digits else 0
        if not low <= found <= high:
            raise unstartable("the number is out of range")
        if zero and found <= 0:
            raise Unfit(zero)
        return found

    return read


def bound(low: int = -(2**63), high: int = 2**63) -> Callable[[str], int]:
    return number(low, high, zero="0 is no limit there, and flowguard keeps its own limit")


def _span_s(rest: str) -> int:
    found = re.fullmatch(r"(\d+)([hdwmy])", word(rest))
    if found is None:
        raise unstartable("a number with h, d, w, m or y is expected")
    return int(found[1]) * SPANS_S[found[2]]


def _level(rest: str) -> str:
    levels = {"all": "debug", "information": "info", "notice": "info"}
    levels |= {level: level for level in ("debug", "warning", "error")}
    found = one_of(*levels, "none", "subscribe", "unsubscribe", "websockets", "internal")(rest)
    if found not in levels:
        raise Unfit("the log has levels, not kinds: log.level")
    return levels[found]


def tls_version(rest: str) -> str:
    if text(rest) not in ("tlsv1.1", "tlsv1.2", "tlsv1.3"):
        raise unstartable("tlsv1.1, tlsv1.2 or tlsv1.3 is expected")
    return text(rest)


# --- options -----------------------------------------------------------------------------------

SYS: Final = "$SYS is always there; node.sys_interval_s is how often it changes"
PLAIN: Final[dict[str, tuple[str, Reader]]] = {
    "log_type": ("log.level", _level),
    "max_inflight_messages": ("session.inflight_max", bound(high=65_535)),
    "max_keepalive": ("session.keep_alive_max_s", number(10, 65_535)),
    "max_packet_size": ("session.packet_size_max", number(20)),
    "max_qos": ("session.maximum_qos", number(0, 2)),
    "maximum_qos": ("session.maximum_qos", number(0, 2)),
    "max_queued_bytes": ("session.queue_bytes_max", bound()),
    "max_queued_messages": ("session.queue_messages_max", bound()),
    "max_topic_alias": ("session.topic_alias_maximum", number(0, 65_535)),
    "memory_limit": ("flow.memory_max_bytes", bound(0)),
    "message_size_limit": ("session.payload_bytes_max", bound(0, 268_435_455)),
    "persistence": ("store.kind", lambda rest: "rocks" if flag(rest) else "memory"),
    "persistent_client_expiration": ("session.session_expiry_max_s", _span_s),
    "retain_available": ("session.retain_available", flag),
    "sys_interval": ("node.sys_interval_s", number(0, 65_535, zero=SYS)),
}
"""Options with a setting in flowguard."""


class Option(NamedTuple):
    """The reader of an option's value, and its effect."""

    read: Reader
    said: str = "read"
    closes: Literal["none", "own"] | None = None
    """The listeners that are left out, or None if the option is taken."""
    usual: Value | None = None
    """The value that changes nothing."""


PSK: Final = "there are no pre-shared keys, and without them it would have no TLS"
DESTINATIONS: Final = ("none", "syslog", "stdout", "stderr", "topic", "file", "dlt")
LOG: Final = "the log goes to standard error; systemd and containers take it from there"
RETAINED: Final = "a retained message is sent even if its publisher has lost the right to it"
SAFE: Final = "what is acknowledged is stored already"
DATA: Final = "a store is a directory: flowguard serve --data DIRECTORY"
NONE: Final = "none"
OWN: Final = "own"
ANY: Final = number(-(2**63))
TLS: Final = Option(text, "the standard library chooses it", NONE)

OF_ACCESS: Final[dict[str, Option]] = {
    "acl_file": Option(text),
    "allow_anonymous": Option(flag),
    "allow_zero_length_clientid": Option(flag, "clients need no client id here", OWN, usual=True),
    "auto_id_prefix": Option(text, "client ids that the broker makes have no prefix", NONE),
    "password_file": Option(text),
    "psk_file": Option(text, "there are no pre-shared keys", NONE),
}
"""Options of a listener with `per_listener_settings true`, else of all listeners."""
OF_LISTENER: Final[dict[str, Option]] = {
    **dict.fromkeys(("cafile", "certfile", "crlfile", "keyfile"), Option(text)),
    **dict.fromkeys(("ciphers", "ciphers_tls1.3", "dhparamfile"), TLS),
    "bind_interface": Option(text, "give the listener an address of that interface", OWN),
    "capath": Option(text, "put the certificates into one file: cafile", NONE),
    "http_dir": Option(text, "files are for a web server", NONE),
    "max_connections": Option(ANY, usual=-1),
    "mount_point": Option(text, "no listener changes topics here", OWN),
    "protocol": Option(one_of("mqtt", "websockets"), usual="mqtt"),
    "psk_hint": Option(text, PSK, OWN),
    "require_certificate": Option(flag, usual=False),
    "socket_domain": Option(one_of("ipv4", "ipv6")),
    "tls_engine": Option(text, "there are no engines, and keys are PEM files", OWN),
    "tls_engine_kpass_sha1": Option(text, "there are no engines", OWN),
    "tls_keyform": Option(text, "keys are PEM files", NONE, usual="pem"),
    "tls_version": Option(tls_version, "the oldest TLS of all listeners"),
    "use_identity_as_username": Option(flag, usual=False),
    "use_subject_as_username": Option(flag, "the common name is the user here", OWN, usual=False),
    "use_username_as_clientid": Option(flag, "a client chooses its client id", OWN, usual=False),
}
OF_ALL: Final[dict[str, Option]] = {
    **dict.fromkeys(("autosave_on_changes", "retained_persistence"), Option(flag, SAFE)),
    "allow_duplicate_messages": Option(flag, "each subscription gets a message", NONE, usual=True),
    "autosave_interval": Option(ANY, SAFE),
    "check_retain_source": Option(flag, RETAINED, NONE, usual=False),
    "clientid_prefixes": Option(text, "no rule is for client ids here", OWN),
    "connection_messages": Option(flag, "the log counts connections, and shows three of a kind"),
    "log_dest": Option(one_of(*DESTINATIONS), LOG),
    "log_facility": Option(number(0, 7), LOG),
    "log_timestamp": Option(flag, "each line of the log has its time"),
    "log_timestamp_format": Option(text, "times are ISO 8601"),
    "max_inflight_bytes": Option(ANY, "messages are counted, not bytes", NONE, usual=0),
    **dict.fromkeys(("persistence_file", "persistence_location"), Option(text, DATA, NONE)),
    "pid_file": Option(text, "systemd knows the process, and /status has it"),
    "queue_qos0_messages": Option(flag, "QoS 0 is for connected clients", NONE, usual=False),
    "retry_interval": Option(word, "Mosquitto ignores it, too"),
    "set_tcp_nodelay": Option(flag, "TCP_NODELAY is always set"),
    "upgrade_outgoing_qos": Option(flag, "a message keeps its QoS", NONE, usual=False),
    "user": Option(text, "the broker keeps the user that starts it"),
    "websockets_headers_size": Option(number(0, 65_535), "their size is fixed here", NONE),
    "websockets_log_level": Option(ANY, "log.level is for all", NONE),
}
BRIDGE: Final = re.compile(
    r"(bridge|local|remote)_\w+|address(es)?|cleansession|clientid|idle_timeout|keepalive_interval"
    r"|notification_topic|notifications(_local_only)?|password|restart_timeout|round_robin"
    r"|start_type|threshold|topic|try_private|username"
)
"""Options of a bridge, which stand below its `connection`."""
PLUGIN: Final = re.compile(r"auth_plugin(_deny_special_chars)?|plugin|(auth|plugin)_opt_.+")
NOT_CREATING: Final = re.compile(
    r"acl_file|allow_anonymous|auto_id_prefix|http_dir|max_topic_alias|tls_(version|keyform)"
)


def creates(name: str, value: Value) -> bool:
    """Return True if this option makes Mosquitto open the default listener."""
    option = OF_LISTENER.get(name) or OF_ACCESS.get(name)
    usual = option.usual if option else 2  # The default of max_qos.
    return not NOT_CREATING.fullmatch(name) and value != usual
