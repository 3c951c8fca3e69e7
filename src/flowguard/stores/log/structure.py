"""The learned structure of topics (sources: EMQX's layouts, the EIP's "learned topic patterns").

A trie of levels. If a node has many children, later unknown words share a child `+`: the level
varies. So a topic becomes a stream (the path to its end) and the words of its varying levels. A
topic's path never changes: a word keeps its own child, or continues to share one.

    begin (2 bytes), parent (8), kind (1), word -> child (8)

Identifiers depend only on path and word, so the same topics produce the same ones.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, final

from flowguard.stores.log.layout import Row

BEGIN: Final = b"\xff\xff"
"""Prefix of the keys of edges, which no shard has as its number."""
ID_BYTES: Final = 8
# Not final: tests have smaller ones, and the compiled code should look at them.
CHILDREN_MAX = 10
ROOT_CHILDREN_MAX = 100
"""Maximum number of children with their own words in the first level; CHILDREN_MAX below it."""
STREAMS_MAX = 10_000
"""Number of streams after which every unknown word shares a child."""
LEVELS: Final = 16
"""Number of levels of the trie; the last one has the rest of the topic."""
TOPIC_CACHED_MAX: Final = 200
"""Maximum length in characters of a topic whose path is cached."""
TOPICS_CACHED: Final = 16_384
_WORD, _VARYING, _END = 0, 1, 2

Term = bytes
"""A varying level and its word: number of the level (2 bytes, from 1), hash of the word (8)."""
Path = tuple[bytes, tuple[Term, ...]]
"""Identifier of the stream, and a term for each of the topic's varying levels."""


def term_of(level: int, word: str) -> Term:
    return level.to_bytes(2, "big") + blake2b(word.encode(), digest_size=8).digest()


@final
class _Node:
    __slots__ = ("ends", "id", "varying", "words")

    def __init__(self, id: bytes) -> None:
        self.id = id
        self.words: dict[str, _Node] = {}
        self.varying: _Node | None = None
        self.ends = False
        """True if a topic ends at this node, which is then a stream of the same identifier."""

    def children(self) -> Iterator["_Node"]:
        yield from self.words.values()
        if self.varying is not None:
            yield self.varying


@final
class Structure:
    """The trie of one generation, in memory. The caller stores its rows."""

    def __init__(self) -> None:
        self._roots = _Node(bytes(ID_BYTES)), _Node((1).to_bytes(ID_BYTES, "big"))
        """The root of topics, and that of topics that begin with `$`."""
        self._ids = {root.id for root in self._roots}
        self._streams = 0
        self._paths: dict[str, Path] = {}
        self.fresh: list[Row] = []
        """Rows that are not stored yet."""

    # --- learning -----------------------------------------------------------------------------

    def path_of(self, topic: str) -> Path:
        """Return the path of a topic, which is learned if it is new."""
        path = self._paths.get(topic)
        if path is None:
            path = self._learn(topic)
            if len(topic) <= TOPIC_CACHED_MAX:
                if len(self._paths) >= TOPICS_CACHED:
                    self._paths.clear()
                self._paths[topic] = path
        return path

    def _learn(self, topic: str) -> Path:
        node = self._roots[topic.startswith("$")]
        terms = []
        for number, word in enumerate(topic.split("/", LEVELS - 1)):
            child = node.words.get(word)
            if child is None and node.varying is None and len(node.words) < self._limit(number):
                child = self._add(node, word)
            if child is None:
                child = node.varying or self._add(node, None)
                terms.append(term_of(number + 1, word))
            node = child
        if not node.ends:
            node.ends = True
            self._streams += 1
            self.fresh.append((_edge(node.id, _END, ""), b""))
        return node.id, tuple(terms)

    def _limit(self, level: int) -> int:
        if self._streams >= STREAMS_MAX:
            return 0
        return CHILDREN_MAX if level else ROOT_CHILDREN_MAX

    def _add(self, parent: _Node, word: str | None) -> _Node:
        """Add a child for a word, or the shared child (None)."""
        edge = _edge(parent.id, _VARYING if word is None else _WORD, word or "")
        id = blake2b(edge, digest_size=ID_BYTES).digest()
        while id in self._ids:
            id = blake2b(id + edge, digest_size=ID_BYTES).digest()
        self.fresh.append((edge, id))
        return self._attach(parent, word, id)

    def _attach(self, parent: _Node, word: str | None, id: bytes) -> _Node:
        child = _Node(id)
        self._ids.add(id)
        if word is None:
            parent.varying = child
        else:
            parent.words[word] = child
        return child

    # --- existing edges -----------------------------------------------------------------------

    def load(self, rows: Sequence[Row]) -> None:
        """Load all stored edges into a new structure."""
        edges: dict[bytes, list[tuple[int, str, bytes]]] = {}
        for key, child in rows:
            at = len(BEGIN) + ID_BYTES
            edge = key[at], key[at + 1 :].decode(), child
            edges.setdefault(key[len(BEGIN) : at], []).append(edge)
        waiting = list(self._roots)
        while waiting:
            node = waiting.pop()
            for kind, word, child in edges.get(node.id, ()):
                if kind == _END:
                    node.ends = True
                    self._streams += 1
                else:
                    waiting.append(self._attach(node, word if kind == _WORD else None, child))

    def inherit(self, other: "Structure") -> None:
        """Begin a new structure with those paths of `other` that have varying levels."""
        for mine, old in zip(self._roots, other._roots, strict=True):
            self._inherit(mine, old, is_below=False)

    def _inherit(self, mine: _Node, old: _Node, *, is_below: bool) -> None:
        """`is_below`: a level above varies, so that all nodes are inherited."""
        if is_below and old.ends:
            mine.ends = True
            self._streams += 1
            self.fresh.append((_edge(mine.id, _END, ""), b""))
        for word, child in old.words.items():
            if is_below or _varies(child):
                self._inherit(self._add(mine, word), child, is_below=is_below)
        if old.varying is not None:
            self._inherit(self._add(mine, None), old.varying, is_below=True)

    # --- search -------------------------------------------------------------------------------

    def streams_of(self, filters: Sequence[str]) -> dict[bytes, list[tuple[Term, ...]]]:
        """Return streams that may have messages for one of the filters, ascending by identifier,
        each with the sets of terms that a message must have; one set is enough."""
        found: dict[bytes, list[tuple[Term, ...]]] = {}
        for filter in filters:
            self._find(filter, found)
        return dict(sorted(found.items()))

    def _find(self, filter: str, found: dict[bytes, list[tuple[Term, ...]]]) -> None:
        words = filter.split("/", LEVELS - 1)
        if "/" in words[-1] and any(each in ("+", "#") for each in words[-1].split("/")):
            words[-1] = "#"
        nodes: list[tuple[_Node, tuple[Term, ...]]] = [(self._roots[filter.startswith("$")], ())]
        for number, word in enumerate(words):
            if word == "#":
                nodes = [(each, terms) for node, terms in nodes for each in _all_below(node)]
                break
            nodes = [step for node, terms in nodes for step in _steps(node, terms, number, word)]
        for node, terms in nodes:
            if node.ends:
                sets = found.setdefault(node.id, [])
                if terms not in sets:
                    sets.append(terms)


def _edge(parent: bytes, kind: int, word: str) -> bytes:
    return BEGIN + parent + bytes((kind,)) + word.encode()


def _varies(node: _Node) -> bool:
    return any(each.varying is not None for each in _all_below(node))


def _all_below(node: _Node) -> Iterator[_Node]:
    """Yield the node and all nodes below it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(each.children())


def _steps(
    node: _Node, terms: tuple[Term, ...], number: int, word: str
) -> Iterator[tuple[_Node, tuple[Term, ...]]]:
    """Yield the nodes that match a level of a filter, with the terms and those that it adds."""
    if word == "+":
        for child in node.children():
            yield child, terms
    elif word in node.words:
        yield node.words[word], terms
    elif node.varying is not None:
        yield node.varying, (*terms, term_of(number + 1, word))
