"""HTTP of a node of a cluster: requests to other nodes, and changes of the cluster.

A request for a shard of another node goes to the port of that shard for relayed clients, and
begins with a frame (`flowguard.broker.workers.arrivals`). The worker there passes the bytes on to
its own HTTP. So a node asks another one without a port, an address or a token of its own.

`POST /cluster/drain` and `/cluster/rebalance` change which nodes may run shards. Other machines
need the token, as for `ops.web.ask.changes`. Both are log events `audit`.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from html import escape
from typing import Final, final

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import TypedDict

from flowguard.app.workers.cluster_duty import ClusterDuty
from flowguard.app.workers.cluster_status import node_state, sentences_of
from flowguard.app.workers.seat import HANDOVER, address_of
from flowguard.broker.workers.fd_frames import frame_bytes
from flowguard.broker.workers.handover import HTTP_HEAD
from flowguard.broker.workers.worker_addresses import connect
from flowguard.cluster.shards import MoveReason, ShardState
from flowguard.errors import ConfigError, StoreError
from flowguard.ops.common.measurement import Look, Measurement, counter, gauge
from flowguard.ops.metrics import families
from flowguard.ops.status import Status
from flowguard.ops.web.callers import audit
from flowguard.ops.web.endpoints import DRAIN
from flowguard.ops.web.http import Change
from flowguard.ops.web.http_connection import (
    HttpConnection,
    Request,
    Response,
    form_of,
    json_response,
)
from flowguard.ops.web.workers_page import table


def _node_states(duty: ClusterDuty) -> Counter[str]:
    return Counter(node_state(node, duty.living) for node in duty.table.nodes.values())


def _shard_states(duty: ClusterDuty) -> Counter[str]:
    return Counter(state for _, state in duty.places())


# A table: one entry is one or two lines.
# fmt: off
OF_A_CLUSTER: Final[tuple[Measurement[ClusterDuty], ...]] = (
    gauge("", "cluster_nodes",
        lambda at: dict.fromkeys(("alive", "leaving", "lost"), 0) | _node_states(at.node),
        "Nodes in the table of the cluster.", "state"),
    gauge("", "cluster_shards",
        lambda at: dict.fromkeys(map(str, ShardState), 0) | _shard_states(at.node),
        "Shards of the whole cluster, by the state that their nodes give.", "state"),
    counter("", "cluster_adoptions", lambda at: dict(at.node.adoptions),
        "Shards that this node has taken and that have served.", "reason", tuple(MoveReason)),
    counter("", "cluster_adoption_seconds", lambda at: dict(at.node.adoption_s),
        "Time from taking these shards until they served.", "reason", tuple(MoveReason)),
)
# fmt: on
NODES: Final = ("node", "state", "alive for", "last sign", "shards", "at most")
SHARDS: Final = ("worker", "state", "node", "incarnation", "messages waiting for links")
CONNECT_S: Final = 1.0
"""Maximum wait for a connection to another node, seconds."""
CLUSTER_DRAIN: Final = "/cluster/drain"
CLUSTER_REBALANCE: Final = "/cluster/rebalance"
WANTED: Final = '{"node": "HOST:PORT"}, a node of GET /cluster'


@final
class ClusterCollector(Collector):
    def __init__(self, duty: ClusterDuty) -> None:
        self._duty = duty

    def collect(self) -> Iterator[Metric]:
        return families(OF_A_CLUSTER, Look(self._duty, trio.current_time()))


@final
class OtherNodes:
    def __init__(self, duty: ClusterDuty) -> None:
        self.duty = duty
        self.status = duty.status
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ClusterCollector(duty))

    @property
    def is_drained(self) -> bool:
        """True if this node gives all its shards away and takes none."""
        return self.duty.node.name in self.duty.table.drained

    def metrics(self) -> bytes:
        """Return the metrics of the cluster as this node sees it."""
        return generate_latest(self._registry)

    def located(self, answer: Response, index: int) -> Response:
        """Return the explanation of a client with the place of its session, a shard."""
        if answer.code != 200:
            return answer
        node, _ = self.duty.places()[index]
        return json_response({**json.loads(answer.body), "node": node, "shard": index})

    def section(self, statuses: Sequence[Status | None]) -> str:
        """Return the section of the page about the nodes and their shards, in HTML."""
        found = self.duty.status(statuses)
        nodes = [
            (
                f'<a href="{escape(node["http"])}">{escape(name)}</a>'
                if node["http"]
                else escape(name),
                node["state"],
                str(timedelta(seconds=round(node["alive_s"]))),
                f"{node['silent_s']:.1f} s ago",
                " ".join(map(str, node["shards"])),
                str(node["shards_max"]),
            )
            for name, node in sorted(found["nodes"].items())
        ]
        shards = [
            (number, escape(shard["state"]), escape(shard["node"]), str(shard["incarnation"]))
            + (() if (load := shard["load"]) is None else (f"{load['waiting']:,}",))
            for number, shard in found["shards"].items()
        ]
        sentences = "".join(f"<p>{escape(line)}</p>" for line in sentences_of(found))
        return f"<h2>Cluster</h2>{sentences}{table(NODES, nodes)}{table(SHARDS, shards)}"

    async def connect(self, index: int) -> trio.abc.Stream | None:
        """Return a connection to the HTTP of a shard that another node runs, or None."""
        node = self.duty.remote.get(index)
        if node is None:
            return None
        sock = connect(address_of(node, index, HANDOVER))
        if sock is None:
            return None
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if (tls := self.duty.tls) is not None:
            stream = trio.SSLStream(
                stream, tls.connecting, server_hostname=node.name, https_compatible=True
            )
        try:
            with trio.fail_after(CONNECT_S):
                await stream.send_all(frame_bytes(HTTP_HEAD, b""))
        except (trio.TooSlowError, trio.BrokenResourceError):
            await trio.aclose_forcefully(stream)
            return None
        return stream


class _Node(TypedDict):
    node: str


def cluster_changes(duty: ClusterDuty | None) -> dict[str, Change]:
    """Return the changes of a node of a cluster by path, none without a cluster."""
    if duty is None:
        return {}
    return {
        CLUSTER_DRAIN: partial(_drain, duty),
        CLUSTER_REBALANCE: partial(_rebalance, duty),
        DRAIN: _drain_over_time,
    }


async def _drain_over_time(request: Request, _: HttpConnection) -> Response:
    why = "this is a node of a cluster: use flowguard cluster drain, or SIGTERM"
    return audit(request, json_response({"error": why}, 409))


async def _drain(duty: ClusterDuty, request: Request, connection: HttpConnection) -> Response:
    node = form_of(await connection.body(), _Node, WANTED)["node"]
    try:
        await duty.mark([_drainable(duty, node)], is_drained=True)
        response = json_response({})
    except LookupError as error:
        response = json_response({"error": str(error.args[0])}, 404)
    except ConfigError as error:
        response = json_response({"error": str(error)}, 409)
    except StoreError as error:
        response = json_response({"error": str(error)}, 503)
    return audit(request, response, node=node)


def _drainable(duty: ClusterDuty, name: str) -> str:
    """Return the name of a node that can be drained. Raises LookupError if no such node lives,
    ConfigError if the others cannot run all shards."""
    if name not in duty.living:
        raise LookupError(f"no living node {name}: there are {', '.join(sorted(duty.living))}")
    others = [duty.table.nodes[each] for each in duty.living if each != name]
    slots = sum(node.shards_max for node in others if not node.is_leaving)
    if slots < (count := len(duty.places())):
        raise ConfigError(
            f"the other nodes can run {slots} of {count} shards: start another node, or restart "
            "one with a higher node.workers"
        )
    return name


async def _rebalance(duty: ClusterDuty, request: Request, _: HttpConnection) -> Response:
    try:
        await duty.mark(duty.table.drained, is_drained=False)
        response = json_response({})
    except (ConfigError, StoreError) as error:
        response = json_response({"error": str(error)}, 503)
    return audit(request, response)
