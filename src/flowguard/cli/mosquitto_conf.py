"""mosquitto.conf as settings of flowguard, with a remark on every line that says something.

What has no counterpart is left out and said; nothing is guessed. Where Mosquitto has no bound and
flowguard has one, the bound stays. Source: mosquitto.conf(5) of Mosquitto 2.0.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final, final

from flowguard.address import PORT_MAX, Address, Scheme

SPANS_S: Final = {"h": 3_600, "d": 86_400, "w": 604_800, "m": 2_592_000, "y": 31_536_000}
PORT: Final = 1883
BOUND: Final = "0 is without bound there, and what has no bound is what falls in a crowd"

Value = str | int | float | bool


class Unfit(Exception):
    """A value that is not taken; the text says why."""


@final
@dataclass(frozen=True, slots=True)
class Remark:
    """The outcome of one line: `line` is its number in the file, from 1; 0: of the whole file."""

    line: int
    text: str
    taken: bool
    said: str


@final
@dataclass(slots=True)
class MosquittoListener:
    """A listener as far as it has been read."""

    line: int
    host: str
    port: int
    websocket: bool = False
    asks_certificates: bool = False
    has_psk: bool = False
    files: dict[str, str] = field(default_factory=dict)
    connections_max: int | None = None

    @property
    def address(self) -> Address:
        """Its address; TLS where it has a certificate."""
        if not self.port:
            return Address(Scheme.MQTT, self.host, None)
        has_tls = "certfile" in self.files
        names = {(False, False): "mqtt", (True, False): "mqtts", (False, True): "ws"}
        return Address(Scheme(names.get((has_tls, self.websocket), "wss")), self.host, self.port)

    def takes(self, name: str, value: str) -> bool:
        """Whether it has this option, which it takes; raises Unfit."""
        if name in FILES:
            self.files[name] = value
        elif name == "require_certificate":
            self.asks_certificates = _flag(value)
        elif name == "max_connections":
            self.connections_max = None if value == "-1" else _bound(value)
        elif name == "protocol":
            self.websocket = _is_websocket(value)
        elif name == "psk_hint":
            self.has_psk = True
        else:
            return False
        return True

    @property
    def flaw(self) -> str:
        """Why it is left out: it would let in whom Mosquitto does not; empty: it is not."""
        if self.has_psk:
            return "there are no pre-shared keys, and without them it would have no TLS"
        if self.asks_certificates and "cafile" not in self.files:
            return "it asks for certificates, and no cafile says by whom they are signed"
        return ""

    def settings(self) -> dict[str, Value]:
        """As in `network.listeners`."""
        found: dict[str, Value] = {"address": str(self.address)}
        names = {"certfile": "cert", "keyfile": "key", "crlfile": "crl"}
        found |= {ours: self.files[name] for name, ours in names.items() if name in self.files}
        if self.asks_certificates and "cafile" in self.files:
            found["client_ca"] = self.files["cafile"]
        if self.connections_max is not None:
            found["connections_max"] = self.connections_max
        return found


# --- values ------------------------------------------------------------------------------------


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise Unfit("true or false is expected")
    return value == "true"


def _count(value: str) -> int:
    if not value.isdecimal():
        raise Unfit("a number is expected")
    return int(value)


def _bound(value: str) -> int:
    count = _count(value)
    if not count:
        raise Unfit(BOUND)
    return count


def _span_s(value: str) -> int:
    found = re.fullmatch(r"(\d+)([hdwmy])", value)
    if found is None:
        raise Unfit("a number with h, d, w, m or y is expected")
    return int(found[1]) * SPANS_S[found[2]]


def _interval(value: str) -> int:
    if value == "0":
        raise Unfit("$SYS is always there; node.sys_interval_s is how often it changes")
    return _count(value)


def _level(value: str) -> str:
    levels = {"all": "debug", "debug": "debug", "information": "info", "notice": "info"}
    levels |= {"warning": "warning", "error": "error"}
    if value not in levels:
        raise Unfit("the log has levels, not kinds: log.level")
    return levels[value]


PLAIN: Final[dict[str, tuple[str, Callable[[str], Value]]]] = {
    "acl_file": ("network.acl_file", str),
    "allow_anonymous": ("network.allow_anonymous", _flag),
    "log_type": ("log.level", _level),
    "max_inflight_messages": ("session.inflight_max", _bound),
    "max_keepalive": ("session.keep_alive_max_s", _bound),
    "max_packet_size": ("session.packet_size_max", _bound),
    "max_qos": ("session.maximum_qos", _count),
    "max_queued_bytes": ("session.queue_bytes_max", _bound),
    "max_queued_messages": ("session.queue_messages_max", _bound),
    "max_topic_alias": ("session.topic_alias_maximum", _count),
    "memory_limit": ("flow.memory_max_bytes", _bound),
    "message_size_limit": ("session.payload_bytes_max", _bound),
    "password_file": ("network.password_file", str),
    "persistent_client_expiration": ("session.session_expiry_max_s", _span_s),
    "retain_available": ("session.retain_available", _flag),
    "sys_interval": ("node.sys_interval_s", _interval),
    "tls_version": ("network.tls_version_min", lambda value: value.removeprefix("tlsv")),
}
"""Options that are a setting here, with how its value is read."""
OF_LISTENERS: Final = ("acl_file", "allow_anonymous", "password_file")
"""Options that belong to a listener with `per_listener_settings true`."""
RULES: Final = ("acl_file", "auth_plugin", "plugin")
"""Options by which not everybody may do everything."""
FILES: Final = ("cafile", "certfile", "crlfile", "keyfile")
ALREADY: Final = {
    "use_identity_as_username": "the name in a certificate that was accepted is the client's",
    "use_subject_as_username": "",
    "check_retain_source": "rules are asked again when a message is sent",
    "autosave_interval": "what is acknowledged is stored already",
    "autosave_on_changes": "what is acknowledged is stored already",
    "per_listener_settings": "",
    "pid_file": "systemd knows the process, and /status has it",
    "set_tcp_nodelay": "it is always so",
    "allow_zero_length_clientid": "it is always so",
    "log_timestamp": "it is always so",
    "log_timestamp_format": "times are ISO 8601",
    "log_dest": "the log goes to standard error; systemd and containers take it from there",
    "connection_messages": "the log counts, and shows three of a kind",
    "user": "the broker stays who starts it",
    "max_inflight_bytes": "",
}
"""Options that need no counterpart, and why; no text: as long as they have their usual value."""
USUAL: Final = {
    "per_listener_settings": "false",
    "max_inflight_bytes": "0",
    "use_subject_as_username": "false",
}
ABSENT: Final = {
    "bind_interface": "give the listener an address of that interface",
    "capath": "put the certificates into one file: cafile",
    "ciphers": "the standard library's choice is used",
    "ciphers_tls1.3": "the standard library's choice is used",
    "connection": "there are no bridges",
    "dhparamfile": "key exchange is by elliptic curves",
    "http_dir": "files are for a web server",
    "include_dir": "import its files one by one",
    "keyform": "keys are PEM files",
    "mount_point": "no listener renames topics",
    "persistence_location": "the directory is an option: flowguard serve --data DIRECTORY",
    "persistence_file": "a store is a directory: flowguard serve --data DIRECTORY",
    "plugin": "plugins of Mosquitto do not run here",
    "auth_plugin": "plugins of Mosquitto do not run here",
    "psk_file": "there are no pre-shared keys",
    "queue_qos0_messages": "QoS 0 is for those who are there",
    "socket_domain": "an address says so: 0.0.0.0 or [::]",
    "upgrade_outgoing_qos": "a message keeps its QoS",
    "use_username_as_clientid": "a client's id is its own",
}


@final
class MosquittoImport:
    """Reads a file line by line: `settings` and `remarks` are what came of it."""

    def __init__(self, text: str) -> None:
        self.settings: dict[str, Any] = {}
        """Values by their keys, as `session.inflight_max`."""
        self.remarks: list[Remark] = []
        self._listeners: list[MosquittoListener] = []
        self._usual: MosquittoListener | None = None
        """The listener of `port`, or of options before any listener."""
        self._in_bridge = False
        self._is_lost = False
        """The last listener could not be taken: what follows is of none."""
        self._is_per_listener = False
        self._has_rules = False
        for number, line in enumerate(text.splitlines(), 1):
            words = line.strip().split(None, 1)
            if words and not words[0].startswith("#"):
                self._read(number, line.strip(), words[0], (words[1:] or [""])[0].strip())
        self._finish()

    def _read(self, number: int, text: str, name: str, value: str) -> None:
        try:
            taken, said = self._take(number, name, value)
        except (Unfit, ValueError) as error:
            taken, said = False, str(error)
        self.remarks.append(Remark(number, text, taken, said))

    def _take(self, number: int, name: str, value: str) -> tuple[bool, str]:
        """Whether the line is taken, and what is to be said of it; raises Unfit: why not."""
        self._in_bridge = name == "connection" or (self._in_bridge and name != "listener")
        self._has_rules |= name in RULES
        if name == "per_listener_settings":
            self._is_per_listener = value == "true"
        if self._is_per_listener and name in OF_LISTENERS:
            raise Unfit("it is of one listener there, and of all here")
        if name in PLAIN:
            key, read = PLAIN[name]
            self.settings[key] = read(value)
            return True, f"{key} = {_toml(self.settings[key])}"
        if name in ABSENT:
            raise Unfit(ABSENT[name])
        if name in ALREADY:
            if name in USUAL and value != USUAL[name]:
                raise Unfit("it is otherwise here")
            return True, ALREADY[name] or "it is so here"
        if name == "persistence":
            self.settings["store.kind"] = "rocks" if _flag(value) else "memory"
            return True, f"store.kind = {_toml(self.settings['store.kind'])}"
        return self._take_of_listener(number, name, value)

    def _take_of_listener(self, number: int, name: str, value: str) -> tuple[bool, str]:
        if name == "listener":
            self._is_lost = True
            self._listeners.append(_listener(number, value))
            self._is_lost = False
            return True, "an address of network.listeners"
        if self._is_lost:
            raise Unfit("its listener was not taken")
        listener = self._listeners[-1] if self._listeners else self._of_old(number)
        if name == "port":
            self._of_old(number).port = _port(value)
        elif name == "bind_address":
            self._of_old(number).host = value
        elif not listener.takes(name, value):
            unknown = "no option of mosquitto.conf(5) that is known here"
            raise Unfit("there are no bridges" if self._in_bridge else unknown)
        return True, "of its listener"

    def _of_old(self, number: int) -> MosquittoListener:
        if self._usual is None:
            self._usual = MosquittoListener(number, "0.0.0.0", PORT)
        return self._usual

    def _finish(self) -> None:
        """Say what Mosquitto takes for granted where nothing is said, and flowguard does not."""
        found = [*([self._usual] if self._usual else []), *self._listeners]
        for each in found:
            if each.flaw:
                self._remark(each.line, False, f"it is left out: {each.flaw}")
        listeners = [each for each in found if not each.flaw]
        if found:
            self.settings["network.listeners"] = [each.settings() for each in listeners]
            self.settings.setdefault("network.allow_anonymous", False)
        for each in listeners:
            if "cafile" in each.files and not each.asks_certificates:
                why = "its cafile is left out: with it, every client would need a certificate"
                self._remark(each.line, False, why)
        if any(not each.address.is_local and not each.address.scheme.has_tls for each in listeners):
            self.settings["network.allow_plaintext"] = True
            why = "network.allow_plaintext = true: other machines may reach a listener without TLS"
            self._remark(0, True, f"{why}; better give it a certificate")
        if self._has_rules and "network.acl_file" not in self.settings:
            self._remark(0, False, "it has rules: no start without a network.acl_file")
        elif listeners and not self._has_rules:
            self.settings["network.allow_all_topics"] = True
            why = "network.allow_all_topics = true: without an acl_file whoever is in may do all"
            self._remark(0, True, f"{why}; better write rules")

    def _remark(self, line: int, taken: bool, said: str) -> None:
        self.remarks.append(Remark(line, "", taken, said))

    def toml(self) -> str:
        """The settings as a file for `flowguard serve --config`."""
        sections: dict[str, list[str]] = {}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, []).append(f"{name} = {_toml(value)}\n")
        return "\n".join(f"[{name}]\n{''.join(lines)}" for name, lines in sections.items())


def _listener(number: int, value: str) -> MosquittoListener:
    words = value.split()
    if words[:1] == ["0"] and len(words) == 2 and PurePath(words[1]).is_absolute():
        return MosquittoListener(number, words[1], 0)
    if not 1 <= len(words) <= 2:
        raise Unfit("a port, and perhaps an address, are expected")
    return MosquittoListener(number, words[1] if len(words) == 2 else "0.0.0.0", _port(words[0]))


def _port(value: str) -> int:
    port = _count(value)
    if not 0 < port <= PORT_MAX:
        raise Unfit("no port")
    return port


def _is_websocket(value: str) -> bool:
    if value not in ("mqtt", "websockets"):
        raise Unfit("mqtt or websockets is expected")
    return value == "websockets"


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[\n" + "".join(f"    {_toml(each)},\n" for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
