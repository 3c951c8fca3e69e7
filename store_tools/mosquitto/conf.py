"""Converts mosquitto.conf to settings of flowguard, with a remark on every line but comments.

The result accepts no client that Mosquitto rejects. A listener is left out if one line of its
access control is not taken; all are left out for a line with which Mosquitto does not start. If
Mosquitto has no limit and flowguard has one, the limit stays.
"""

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, final

from pydantic import ValidationError

from flowguard.address import PORT_MAX
from flowguard.cli.settings import toml_value
from flowguard.config import Settings
from store_tools.mosquitto import options as options
from store_tools.mosquitto.listener import Access, MosquittoListener
from store_tools.mosquitto.options import Option, Unfit, Value, unstartable

PORT: Final = 1883
FILES_DEEP_MAX: Final = 10


@final
@dataclass(frozen=True, slots=True)
class Remark:
    """The outcome of one line, or of a listener, or of the whole file."""

    place: str
    """`FILE:LINE`, or the file."""
    text: str
    """The line, or "" if the remark is on something else."""
    taken: bool
    said: str


@final
class MosquittoImport:
    """Reads a file line by line; `settings` and `remarks` are the result."""

    def __init__(self, content: bytes, name: str = "mosquitto.conf") -> None:
        self.settings: dict[str, Any] = {}
        """Values by key, such as `session.inflight_max`."""
        self.remarks: list[Remark] = []
        self.left_out = False
        """True if a listener was left out."""
        self._name = name
        self._place = name
        self._default = MosquittoListener(name, None, PORT, is_default=True)
        """The listener of `port`, and of options above the first `listener`."""
        self._listeners: list[MosquittoListener] = []
        self._current = self._default
        self._in_bridge = False
        self._is_local = True
        """True if no line names a listener; then Mosquitto accepts clients without a user name."""
        self._is_per_listener = False
        self._shared: dict[str, Value] = {}
        """Options of access control and texts that apply to all listeners."""
        self._lost: dict[str, Value] | None = None
        """Options of a listener that Mosquitto has lost."""
        self._closed: list[str] = []
        """Places of the lines because of which all listeners are left out."""
        self._read_file(content, name, 0)
        self._finish()

    def _read_file(self, content: bytes, name: str, depth: int) -> None:
        """Read one file; in each, options above its first `listener` are the default listener's."""
        before = self._current, self._in_bridge
        self._current, self._in_bridge = self._default, False
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            stripped = line.rstrip("\r")
            if stripped.strip(" ") and not stripped.startswith("#"):
                self._place = f"{name}:{number}"
                self._read(stripped, depth)
        self._current, self._in_bridge = before

    def _read(self, line: str, depth: int) -> None:
        name, _, rest = line.strip(" ").partition(" ")
        place, listener = self._place, self._current
        try:
            if "\0" in line or "\ufffd" in line:
                raise unstartable("the line is no UTF-8 text")
            said = self._include(rest, depth) if name == "include_dir" else self._take(name, rest)
            self.remarks.append(Remark(place, line.strip(), True, said))
        except Unfit as error:
            self.remarks.append(Remark(place, line.strip(), False, str(error)))
            is_shared = name in options.OF_ALL or (
                name not in options.OF_LISTENER and not self._is_per_listener
            )
            if error.closes == "all" or (error.closes == "own" and is_shared):
                self._closed.append(place)
            elif error.closes == "own":
                listener.flaws.append(f"line {place.rpartition(':')[2]} is not taken")

    def _include(self, rest: str, depth: int) -> str:
        folder, count = Path(options.text(rest)), len(self._listeners)
        if depth >= FILES_DEEP_MAX:
            raise unstartable("files include each other")
        try:
            names = sorted(each.name for each in folder.iterdir() if each.name.endswith(".conf"))
            for name in names:
                self._read_file((folder / name).read_bytes(), str(folder / name), depth + 1)
        except OSError as error:
            raise Unfit(f"cannot read {folder}: {error.strerror}", "all") from error
        if len(self._listeners) > count and self._current is not self._default:
            self._lost = self._current.options
        return f"read: {', '.join(names) or 'no file ends in .conf'}"

    def _take(self, name: str, rest: str) -> str:
        """Take the line, and return the remark on it. Raises Unfit."""
        own = self._current.options if self._is_per_listener else self._shared
        if option := options.OF_ACCESS.get(name):
            return self._keep(own, name, option, rest)
        if option := options.OF_LISTENER.get(name):
            return self._keep(self._current.options, name, option, rest)
        if option := options.OF_ALL.get(name):
            return self._keep(self._shared, name, option, rest)
        if name in options.PLAIN:
            return self._take_plain(name, rest)
        if name in ("listener", "port", "bind_address"):
            return self._take_address(name, rest)
        if name == "per_listener_settings":
            self._is_per_listener = options.flag(rest)
            if self._is_per_listener and self._shared.keys() & options.OF_ACCESS:
                raise unstartable("it has to stand above all options of access")
            return "read"
        if options.PLUGIN.fullmatch(name):
            self._current.options[name] = options.text(rest)
            raise Unfit("plugins of Mosquitto do not run here", "own")
        self._in_bridge |= name == "connection" and bool(options.text(rest))
        if self._in_bridge and (name == "connection" or options.BRIDGE.fullmatch(name)):
            raise Unfit("there are no bridges")
        raise unstartable(f"{name!a} is unknown here")

    def _take_plain(self, name: str, rest: str) -> str:
        key, read = options.PLAIN[name]
        value = read(rest)
        section, _, own = key.partition(".")
        try:
            Settings.model_validate({section: {own: value}})
        except ValidationError as error:
            raise Unfit(f"{key}: {error.errors()[0]['msg']}") from error
        self.settings[key] = value
        if key == "session.maximum_qos":
            self._current.options[name] = value
        return f"{key} = {_toml(value)}"

    def _keep(self, own: dict[str, Value], name: str, option: Option, rest: str) -> str:
        """Keep an option for `_finish`; raises Unfit if it has no counterpart."""
        value = option.read(rest)
        if option.read in (options.text, options.tls_version) and name in own:
            raise unstartable("it is given twice")
        if name == "mount_point" and own is self._default.options:
            raise unstartable("it has to stand below a listener")
        own[name] = value
        if own is self._lost:
            raise Unfit("Mosquitto loses it below an include_dir that has a listener", "own")
        if option.closes is not None and value != option.usual:
            raise Unfit(option.said, option.closes)
        return option.said

    def _take_address(self, name: str, value: str) -> str:
        self._is_local = False
        if name == "listener":
            second = value.strip(" ").partition(" ")[2].strip(" ").partition(" ")[0]
            host = None if second.startswith("#") else second or None
            port = options.number(0 if host else 1, PORT_MAX)(value)
            self._current = MosquittoListener(self._place, host, port)
            self._listeners.append(self._current)
        elif name == "port":
            self._default.port = options.number(1, PORT_MAX)(value)
        else:
            self._default.host = options.text(value)
        if name != "listener":
            if name == "bind_address" and name in self._default.options:
                raise unstartable("it is given twice")
            self._default.place = self._place
            self._default.options[name] = value
        return "an address of network.listeners"

    # --- the whole ------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Create the listeners, and set explicitly what Mosquitto has as a default."""
        found = list(self._listeners)
        if self._default.exists:
            found.insert(0, self._default)
        elif not found:
            own = self._default.options
            hosts = ("127.0.0.1", "::1")
            found = [MosquittoListener(self._name, host, PORT, options=own) for host in hosts]
        access = [self._access(each) for each in found]
        self._closed += [each.place for each in found if not each.versions]
        self._closed += [two.place for one, two in combinations(found, 2) if one.overlaps(two)]
        for each, its in zip(found, access, strict=True):
            each.flaws += each.find_flaws(its)
            if self._closed:
                each.flaws.append(f"not taken: {', '.join(dict.fromkeys(self._closed))}")
        kept = [(each, its) for each, its in zip(found, access, strict=True) if not each.flaws]
        fitting = {its: sum(each.fits(own, its) for each, own in kept) for _, its in kept}
        shared = max(fitting, key=fitting.__getitem__, default=Access(False, None, None))
        for each, its in zip(found, access, strict=True):
            if not each.flaws and not each.fits(its, shared):
                each.flaws.append("its access is another, and here all listeners have the same")
            if each.flaws:
                self._remark(each.place, f"the listener is left out: {'; '.join(each.flaws)}")
        self._write([each for each in found if not each.flaws], shared)
        self.left_out = any(each.flaws for each in found)

    def _access(self, listener: MosquittoListener) -> Access:
        own = listener.options if self._is_per_listener else self._shared
        # A certificate without a name is not anonymous, but rejected.
        anonymous = own.get("allow_anonymous", self._is_local) and not listener.has_names
        files = [own.get("password_file"), own.get("acl_file")]
        if self._is_per_listener and listener.is_default and "allow_anonymous" not in own:
            why = "allow_anonymous is not given, and above the first listener that lets all in"
            listener.flaws.append(why)
        return Access(bool(anonymous), *files)

    def _write(self, listeners: list[MosquittoListener], shared: Access) -> None:
        settings = self.settings
        settings["network.listeners"] = [each.settings() for each in listeners]
        own = {f"network.{name}": value for name, value in shared._asdict().items()}
        settings |= {key: value for key, value in own.items() if value is not None}
        oldest = [each.options.get("tls_version") for each in listeners if each.has_tls]
        if "tlsv1.3" in oldest:
            settings["network.tls_version_min"] = "1.3"
        if "tlsv1.1" in oldest or ("tlsv1.3" in oldest and len(set(oldest)) > 1):
            self._remark(self._name, "the oldest TLS is the same for all listeners, at least 1.2")
        if any(not each.address.is_local and not each.has_tls for each in listeners):
            settings["network.allow_plaintext"] = True
            why = "network.allow_plaintext = true: other machines may reach a listener without TLS"
            self._remark(self._name, f"{why}; better give it a certificate", taken=True)
        if not shared.acl_file:
            settings["network.allow_all_topics"] = True
            why = "network.allow_all_topics = true: without an acl_file clients may use all topics"
            self._remark(self._name, f"{why}; better write rules", taken=True)
        elif "check_retain_source" not in self._shared:
            said = options.OF_ALL["check_retain_source"].said
            self._remark(self._name, f"check_retain_source is true there: {said}")
        if self._is_local and not shared.allow_anonymous:
            why = "allow_anonymous false holds; without a listener Mosquitto ignores it"
            self._remark(self._name, why)
        if any(each.is_websocket for each in listeners):
            self._remark(self._name, "web pages of other origins need network.origins")

    def _remark(self, place: str, said: str, *, taken: bool = False) -> None:
        self.remarks.append(Remark(place, "", taken, said))

    def toml(self) -> str:
        """The settings as a file for `flowguard serve --config`."""
        sections: dict[str, list[str]] = {}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, []).append(f"{name} = {_toml(value)}\n")
        return "\n".join(f"[{name}]\n{''.join(lines)}" for name, lines in sections.items())


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[\n" + "".join(f"    {toml_value(each)},\n" for each in value) + "]"
    return toml_value(value)
