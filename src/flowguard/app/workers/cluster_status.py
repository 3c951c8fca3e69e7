"""The state of a cluster as one node sees it: the answer to `GET /cluster`, by nodes and shards."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from typing_extensions import TypedDict

from flowguard.cluster.shards import MoveReason, NodeRecord, ShardState, reason_of
from flowguard.ops.status import LinksStatus, Status

if TYPE_CHECKING:
    from flowguard.stores.redis.cluster_table import ClusterView

WHY: Final[Mapping[str, str]] = {
    MoveReason.NEW: "no node has run it yet",
    MoveReason.LOST: "{} is lost",
    MoveReason.LEAVING: "{} gives its shards away",
    MoveReason.RESTART: "it ran there before",
    MoveReason.BALANCE: "{} has more shards",
}
NO_LINKS: Final = LinksStatus(waiting={}, down={}, window={})
"""Those of a worker of another version."""


class NodeStatus(TypedDict):
    state: str
    """alive, leaving, drained or lost."""
    alive_s: float
    """Time from the start of the node to its last sign of life, seconds."""
    silent_s: float
    shards_max: int
    shards: list[int]
    http: str
    """The URL of its page, or "" if other machines do not reach it."""


class ShardLoad(TypedDict):
    clients: int
    sessions: int
    window: float
    pressure: float
    cause: str | None
    waiting: int
    """Messages that wait on the links to other shards."""
    links_down: list[str]
    """The shards to which there is no link."""


class ShardStatus(TypedDict):
    node: str
    """The node that runs the shard or starts it, or ""."""
    state: str
    """A value of `ShardState`, or of that of a newer version."""
    incarnation: int
    load: ShardLoad | None
    """The load of the shard, or None if it does not answer."""


class MoveStatus(TypedDict):
    shard: int
    last_node: str
    next_node: str
    why: str
    """A value of `MoveReason`."""


class ClusterStatus(TypedDict):
    node: str
    """The node that answers."""
    trouble: str
    """Why Redis has not given the table just now, or ""."""
    nodes: dict[str, NodeStatus]
    shards: dict[str, ShardStatus]
    """By the number of the shard."""
    down: list[int]
    """Shards that serve no clients."""
    moving: list[MoveStatus]
    """Shards that another node is to run."""
    moves: int | None
    """The shard that moves now or next, or None if none is to move, or none can."""


def nodes_of(table: "ClusterView", living: set[str]) -> dict[str, NodeStatus]:
    holders = {home.node for home in table.shards.values()}
    empty = (living & table.drained) - holders
    return {
        name: NodeStatus(
            state="drained" if name in empty else node_state(node, living),
            alive_s=round(node.alive_s, 1),
            silent_s=round(table.ages_s[name], 1),
            shards_max=node.shards_max,
            shards=[shard for shard, home in table.shards.items() if home.node == name],
            http=node.http,
        )
        for name, node in table.nodes.items()
    }


def node_state(node: NodeRecord, living: set[str]) -> str:
    if node.name not in living:
        return "lost"
    return "leaving" if node.is_leaving else "alive"


def moves_of(
    table: "ClusterView", living: set[str], duties: Mapping[int, str]
) -> dict[int, MoveStatus]:
    """Return the shards that are not at the node that is to run them."""
    found: dict[int, MoveStatus] = {}
    for shard, name in duties.items():
        home = table.shards.get(shard)
        last = "" if home is None else home.node
        if last != name:
            why: MoveReason = reason_of(table.nodes.get(last) if last in living else None, last)
            found[shard] = MoveStatus(shard=shard, last_node=last, next_node=name, why=why.value)
    return found


def place_of(
    shard: int, table: "ClusterView", living: set[str], duties: Mapping[int, str]
) -> tuple[str, str]:
    """Return the node of a shard, and the state that it gives; "" if no living node has it.

    During a move this is the next node, as soon as the last one does not serve it.
    """
    home = table.shards.get(shard)
    names = [duties.get(shard, ""), "" if home is None else home.node]
    if names[1] in living and table.nodes[names[1]].states.get(str(shard)) == ShardState.SERVES:
        names.reverse()  # It serves until the next node waits for its lease.
    for name in names:
        if name in living and (state := table.nodes[name].states.get(str(shard))):
            return name, state
    return (names[0], ShardState.STARTING) if names[0] in living else ("", ShardState.DOWN)


def load_of(status: Status) -> ShardLoad | None:
    """Return the load of a shard, or None if its node has a version that shows less."""
    links = status.get("links", NO_LINKS)
    try:
        return ShardLoad(
            clients=status["clients"]["connected"],
            sessions=status["clients"].get("sessions", 0),
            window=0.0 if status["window"]["closed"] else status["window"]["granted"],
            pressure=status["pressure"]["value"],
            cause=status["pressure"]["cause"],
            waiting=sum(links["waiting"].values()),
            links_down=[peer for peer, is_down in links["down"].items() if is_down],
        )
    except KeyError:
        return None


def shards_of(
    places: Sequence[tuple[str, str]],
    table: "ClusterView",
    statuses: Sequence[Status | None],
) -> dict[str, ShardStatus]:
    """`places` and `statuses` have an entry for each shard."""
    shards: dict[str, ShardStatus] = {}
    for shard, ((node, state), status) in enumerate(zip(places, statuses, strict=True)):
        home = table.shards.get(shard)
        shards[str(shard)] = ShardStatus(
            node=node,
            state=state,
            incarnation=0 if home is None else home.incarnation,
            load=None if status is None else load_of(status),
        )
    return shards


def sentences_of(found: ClusterStatus) -> Iterator[str]:
    """Yield what an operator has to know: moves, shards that do not serve, links that are down."""
    if found["trouble"]:
        yield f"Redis does not answer {found['node']}: {found['trouble']}"
    moving = {move["shard"] for move in found["moving"]}
    for move in found["moving"]:
        to, why = move["next_node"], WHY.get(move["why"], move["why"])
        yield f"Shard {move['shard']} goes to {to}: {why.format(move['last_node'])}."
    for name, shard in found["shards"].items():
        if int(name) in found["down"] and int(name) not in moving:
            where = f" at {shard['node']}" if shard["node"] else ", no living node can run it"
            yield f"Shard {name} does not serve: {shard['state']}{where}."
        if shard["load"] is not None and shard["load"]["links_down"]:
            peers = ", ".join(shard["load"]["links_down"])
            yield f"Shard {name} at {shard['node']} has no link to {peers}."
