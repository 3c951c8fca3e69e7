"""RedisCluster: all primaries of a Redis Cluster, with the interface of `RedisLink`.

Each primary has a connection of its own. Commands are sent to all primaries before the first answer
is read, so they work in parallel. Redirections (MOVED, ASK, TRYAGAIN) and failovers are retried for
RETRY_S, and then raise `StallError`.
"""

from binascii import crc_hqx
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, final
from urllib.parse import urlsplit, urlunsplit

from flowguard.errors import ConfigError, StallError
from flowguard.stores.redis.connection.link import (
    INFO_MEMORY,
    Call,
    RedisLink,
    check_database,
    check_replicas,
    failure,
    is_passing,
    redirection_of,
    values_of,
)
from flowguard.stores.redis.connection.packing import Words

SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
SLOTS: Final = 16_384
RETRY_S: Final = 1.0
"""Maximum time of retries after redirections and failovers, per call of `ask`."""
PAUSE_S: Final = 0.01
"""Pause between two attempts."""

Address = tuple[str, int]
Greet = Callable[[RedisLink], None]


def is_cluster(url: str) -> bool:
    return urlsplit(url).scheme in SCHEMES


def slot_of(key: bytes) -> int:
    """Return the slot of a key, or of its hash tag if it has one."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def _key_of(command: Words) -> bytes:
    """Return the first key of a command; a function has it after the number of keys."""
    key = command[3] if command[0] == b"FCALL" else command[1]
    assert isinstance(key, bytes), command
    return key


def seeds_of(url: str) -> dict[Address, str]:
    """Return the nodes of a URL by address, each as a server's URL. Raises `ConfigError`."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if parts.path.strip("/"):
        check_database(parts.path[1:])
        raise ConfigError("redis.url names a database, and a Redis Cluster has but one")
    found: dict[Address, str] = {}
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal():
            raise ConfigError(
                f"redis.url names the node {host!r}: a Redis Cluster is "
                "redis+cluster://HOST:PORT,HOST:PORT, and has no database"
            )
        server = urlunsplit((SCHEMES[parts.scheme], f"{user}{at}{host}", "", "", ""))
        found[name.strip("[]"), int(port)] = server
    return found


@dataclass(slots=True)
class _Questions:
    """Commands, and the nodes that have to answer them."""

    commands: Sequence[Words]
    replicas: int
    wait_ms: int
    found: list[Any]
    left: dict[int, Address] = field(default_factory=dict)
    asking: dict[int, Address] = field(default_factory=dict)
    """Commands for a slot that is being moved to a node; each needs ASKING before it."""

    def words(self, indexes: Sequence[int]) -> list[Words]:
        found: list[Words] = []
        for index in indexes:
            if index in self.asking:
                found.append((b"ASKING",))
            found.append(self.commands[index])
        if self.replicas:
            found.append((b"WAIT", self.replicas, self.wait_ms))
        return found


@final
class RedisCluster:
    """Call from one thread at a time. `greet` is called on every new connection to a primary."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        greet: Greet = lambda link: None,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Read the nodes of all slots. Raises `StallError`, and other `StoreError`."""
        self._seeds = seeds_of(url)
        self.where = ",".join(f"{host}:{port}" for host, port in self._seeds)
        self._timeout_s = timeout_s
        self._greet = greet
        self._clock = clock
        self._sleep = sleep
        self._links: dict[Address, RedisLink] = {}
        self._slots: list[Address] = []
        self._find_slots()

    @property
    def primaries(self) -> list[RedisLink]:
        """The primaries, according to the last answer of a node."""
        return [self._link_to(address) for address in sorted(set(self._slots))]

    def has_key(self, link: RedisLink, key: bytes) -> bool:
        """Return True if this primary has the slot of the key, according to the last answer."""
        return self._links.get(self._slots[slot_of(key)]) is link

    # --- questions ----------------------------------------------------------------------------

    def ask(self, commands: Sequence[Words]) -> list[Any]:
        """Return the answers in order, each from the node of the command's key. Raises as
        `RedisLink.ask`."""
        return self._ask(commands, 0, 0)

    def call(self, function: bytes, keys: Sequence[bytes], words: Words) -> list[Any]:
        return self.ask([(b"FCALL", function, len(keys), *keys, *words)])

    def commit(
        self, function: bytes, calls: Sequence[Call], replicas: int, wait_ms: int
    ) -> list[Any]:
        """Return the answers to the calls when `replicas` of each primary have confirmed them."""
        commands = [(b"FCALL", function, len(keys), *keys, *words) for keys, words in calls]
        return self._ask(commands, replicas, wait_ms)

    def memory(self) -> dict[str, str]:
        """Return INFO memory of the primary with the least free memory."""
        found = [values_of(link.ask([INFO_MEMORY])[0]) for link in self.primaries]
        return min(found, key=_left_bytes)

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    # --- tries --------------------------------------------------------------------------------

    def _ask(self, commands: Sequence[Words], replicas: int, wait_ms: int) -> list[Any]:
        questions = _Questions(commands, replicas, wait_ms, [None] * len(commands))
        questions.left = {index: self._home_of(each) for index, each in enumerate(commands)}
        until_s = self._clock() + RETRY_S
        while questions.left or questions.asking:
            trouble = self._try(questions)
            if trouble is None:
                continue
            if self._clock() >= until_s:
                raise StallError(f"{self.where}: {trouble}")
            self._sleep(PAUSE_S)
            with suppress(StallError):  # If no node answers, ask the previous ones again.
                self._find_slots()
            questions.left = {index: self._home_of(commands[index]) for index in questions.left}
        return questions.found

    def _home_of(self, command: Words) -> Address:
        return self._slots[slot_of(_key_of(command))]

    def _try(self, questions: "_Questions") -> str | None:
        """Send all remaining commands once. Return the reason of a failure, or None."""
        trouble: str | None = None
        groups: dict[Address, list[int]] = {}
        for index, address in (questions.left | questions.asking).items():
            groups.setdefault(address, []).append(index)
        answers = self._exchange(
            {address: questions.words(indexes) for address, indexes in groups.items()}
        )
        for address, indexes in groups.items():
            got = answers[address]
            if isinstance(got, StallError):
                trouble = str(got)
                for index in indexes:  # Another node may have the slot by now.
                    questions.asking.pop(index, None)
                    questions.left[index] = address
                continue
            if questions.replicas:
                confirmed = got.pop()
                if isinstance(confirmed, Exception):
                    raise failure(confirmed, self.where)
                check_replicas(self._link_to(address).where, questions.replicas, [confirmed])
            replies = iter(got)
            for index in indexes:
                if questions.asking.pop(index, None) is not None:
                    next(replies)
                trouble = self._take(index, next(replies), address, questions) or trouble
        return trouble

    def _take(
        self, index: int, reply: Any, address: Address, questions: "_Questions"
    ) -> str | None:
        """Take one reply. Return the reason of a failure, or None."""
        questions.left.pop(index, None)
        if not isinstance(reply, Exception):
            questions.found[index] = reply
            return None
        link = self._link_to(address)
        redirection = redirection_of(reply)
        if redirection is not None:
            if redirection.is_for_good:
                questions.left[index] = address
                return f"slot {redirection.slot} has moved"
            questions.asking[index] = (redirection.host or address[0], redirection.port)
            return None
        if "Function not found" in str(reply):
            link.load_functions()
        elif not is_passing(reply):
            raise failure(reply, link.where) from reply
        questions.left[index] = address
        return str(reply)

    def _exchange(
        self, questions: Mapping[Address, list[Words]]
    ) -> dict[Address, list[Any] | StallError]:
        """Ask all primaries in parallel. Return answers by address, or the error of a primary that
        does not answer."""
        found: dict[Address, list[Any] | StallError] = {}
        posted: list[Address] = []
        broken: BaseException | None = None
        for address, words in questions.items():
            try:
                self._link_to(address).post(words)
                posted.append(address)
            except StallError as error:
                found[address] = error
            except BaseException as error:
                broken = error
                break
        for address in posted:  # Also after an error: unread answers would confuse the next call.
            try:
                found[address] = self._link_to(address).collect(len(questions[address]))
            except StallError as error:
                found[address] = error
        if broken is not None:
            raise broken
        return found

    # --- nodes and slots ----------------------------------------------------------------------

    def _link_to(self, address: Address) -> RedisLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = RedisLink(
                self._url_of(address), self._timeout_s, self._welcome
            )
        return link

    def _welcome(self, link: RedisLink) -> None:
        """Check a new connection, and load the functions: the primary may be new."""
        self._greet(link)
        link.load_functions()

    def _url_of(self, address: Address) -> str:
        """Return the URL of a node. User, password and TLS are those of the configured nodes."""
        parts = urlsplit(next(iter(self._seeds.values())))
        user, at, _ = parts.netloc.rpartition("@")
        host, port = address
        shown = f"[{host}]" if ":" in host else host
        return urlunsplit((parts.scheme, f"{user}{at}{shown}:{port}", "", "", ""))

    def _find_slots(self) -> None:
        """Ask any node for the nodes of all slots, and close connections to former primaries."""
        trouble: StallError | None = None
        for address in dict.fromkeys([*self._slots[::64], *self._links, *self._seeds]):
            try:
                with closing(RedisLink(self._url_of(address), self._timeout_s)) as link:
                    state, ranges = link.ask([(b"CLUSTER", b"INFO"), (b"CLUSTER", b"SLOTS")])
            except StallError as error:
                trouble = error
                continue
            if values_of(state).get("cluster_state") != "ok":  # It may be partitioned.
                trouble = StallError(f"{link.where}: the cluster is down, as it sees it")
                continue
            slots: list[Address | None] = [None] * SLOTS
            for first, last, (host, port, *_), *_ in ranges:
                owner = (host.decode() if host else address[0], port)
                slots[first : last + 1] = [owner] * (last + 1 - first)
            missing = slots.count(None)
            if missing:
                trouble = StallError(f"{self.where}: {missing} slots have no node")
                continue
            self._slots = [each for each in slots if each is not None]
            for gone in self._links.keys() - set(self._slots):
                self._links[gone].close()
            return
        assert trouble is not None
        raise trouble


def _left_bytes(memory: dict[str, str]) -> float:
    """Return the free memory below a server's maxmemory, infinite if that is not set."""
    max_bytes = int(memory.get("maxmemory", "0"))
    return max_bytes - int(memory.get("used_memory", "0")) if max_bytes else float("inf")
