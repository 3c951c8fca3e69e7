"""Requests of the HTTP port of a node to other nodes of its cluster.

A request for a shard of another node goes to the port of that shard for relayed clients, and
begins with a frame (`flowguard.broker.workers.arrivals`). The worker there passes the bytes on to
its own HTTP. So a node asks another one without a port, an address or a token of its own.
"""

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from html import escape
from typing import Final, final

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from flowguard.app.workers.cluster_duty import ClusterDuty
from flowguard.app.workers.cluster_status import sentences_of
from flowguard.app.workers.seat import HANDOVER, address_of
from flowguard.broker.workers.fd_frames import frame_bytes
from flowguard.broker.workers.handover import HTTP_HEAD
from flowguard.broker.workers.worker_addresses import connect
from flowguard.cluster.shards import MoveReason, ShardState
from flowguard.ops.common.measurement import Look, Measurement, counter, gauge
from flowguard.ops.metrics import families
from flowguard.ops.status import Status
from flowguard.ops.web.http_connection import Response, json_response
from flowguard.ops.web.workers_page import table

# A table: one entry is one or two lines.
# fmt: off
OF_A_CLUSTER: Final[tuple[Measurement[ClusterDuty], ...]] = (
    gauge("", "cluster_nodes",
        lambda at: dict.fromkeys(("alive", "leaving", "lost"), 0) | at.node.node_states(),
        "Nodes in the table of the cluster.", "state"),
    gauge("", "cluster_shards",
        lambda at: dict.fromkeys(map(str, ShardState), 0) | at.node.shard_states(),
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


@final
class ClusterCollector(Collector):
    def __init__(self, duty: ClusterDuty) -> None:
        self._duty = duty

    def collect(self) -> Iterator[Metric]:
        return families(OF_A_CLUSTER, Look(self._duty, trio.current_time()))


@final
class OtherNodes:
    def __init__(self, duty: ClusterDuty) -> None:
        self._duty = duty
        self.status = duty.status
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ClusterCollector(duty))

    @property
    def trouble(self) -> str:
        """Why the table of the cluster cannot be read, or ""."""
        return self._duty.trouble

    def metrics(self) -> bytes:
        """Return the metrics of the cluster as this node sees it."""
        return generate_latest(self._registry)

    def located(self, answer: Response, index: int) -> Response:
        """Return the explanation of a client with the place of its session, a shard."""
        if answer.code != 200:
            return answer
        node, _ = self._duty.places()[index]
        return json_response({**json.loads(answer.body), "node": node, "shard": index})

    def section(self, statuses: Sequence[Status | None]) -> str:
        """Return the section of the page about the nodes and their shards, in HTML."""
        found = self._duty.status(statuses)
        nodes = [
            (
                f'<a href="{escape(node["http"])}">{escape(name)}</a>' if node["http"] else name,
                node["state"],
                str(timedelta(seconds=round(node["alive_s"]))),
                f"{node['silent_s']:.1f} s ago",
                " ".join(map(str, node["shards"])),
                str(node["shards_max"]),
            )
            for name, node in sorted(found["nodes"].items())
        ]
        shards = [
            (number, shard["state"], escape(shard["node"]), str(shard["incarnation"]))
            + (() if (load := shard["load"]) is None else (f"{load['waiting']:,}",))
            for number, shard in found["shards"].items()
        ]
        sentences = "".join(f"<p>{escape(line)}</p>" for line in sentences_of(found))
        return f"<h2>Cluster</h2>{sentences}{table(NODES, nodes)}{table(SHARDS, shards)}"

    async def connect(self, index: int) -> trio.abc.Stream | None:
        """Return a connection to the HTTP of a shard that another node runs, or None."""
        node = self._duty.remote.get(index)
        if node is None:
            return None
        sock = connect(address_of(node, index, HANDOVER))
        if sock is None:
            return None
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if (tls := self._duty.tls) is not None:
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
