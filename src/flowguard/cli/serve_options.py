"""The options of `flowguard serve`."""

from pathlib import Path
from typing import Annotated

import typer

HTTP_HOST = "127.0.0.1"
HTTP_PORT = 9883

Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="Listener: HOST:PORT, mqtts://HOST:PORT, ws://, wss:// or unix:PATH; port 0 takes a "
        "free one; repeatable; default: 127.0.0.1:1883.",
    ),
]
Cert = Annotated[Path | None, typer.Option(help="Certificate chain, PEM (network.cert).")]
Key = Annotated[
    Path | None, typer.Option(help="Private key of the certificate, PEM (network.key).")
]
ClientCa = Annotated[
    Path | None,
    typer.Option(help="CA of client certificates, PEM (network.client_ca)."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(help="Users, made by `flowguard passwd` (network.password_file)."),
]
TokenKeys = Annotated[
    Path | None,
    typer.Option(help="Keys that verify tokens (JWT), PEM or JWKS (network.token_keys)."),
]
TokenAudience = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Required audience of tokens, `aud` (network.token_audience)."
    ),
]
Acl = Annotated[
    Path | None,
    typer.Option(help="Rules for topics, TOML or Mosquitto's ACL format (network.acl_file)."),
]
AllowAllTopics = Annotated[
    bool,
    typer.Option("--allow-all-topics", help="Allow all topics for all clients (no ACL)."),
]
AllowAnonymous = Annotated[
    bool, typer.Option("--allow-anonymous", help="Allow clients without a user name.")
]
AllowPlaintext = Annotated[
    bool,
    typer.Option("--allow-plaintext", help="Allow listeners without TLS beyond this machine."),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Data directory (store.data_dir); default: flowguard-data."),
]
Config = Annotated[Path | None, typer.Option(help="Configuration file, TOML.")]
LimitsFile = Annotated[
    Path | None,
    typer.Option(help="TOML file with limits (section flow); overrides --config."),
]
StoreName = Annotated[
    str | None, typer.Option(help="Store for sessions: rocks, memory or redis (store.kind).")
]
RedisUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Redis server for --store redis (redis.url).")
]
KafkaServers = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Kafka for the queues of applications (kafka.servers, store.application_store).",
    ),
]
Takeover = Annotated[
    bool,
    typer.Option(
        "--takeover", help="Stand by until the broker that owns this store ends (redis.takeover)."
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Number of processes that share the clients; auto is one per core (node.workers).",
    ),
]
ClusterAddress = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="HOST:PORT",
        help="Join the cluster in Redis; other nodes reach this one here (cluster.address).",
    ),
]
PolicyOption = Annotated[str | None, typer.Option(help="Overload policy (flow.policy).")]
ShadowPolicy = Annotated[
    str | None, typer.Option(help="Policy that is evaluated without effect (flow.shadow_policy).")
]
ShadowFile = Annotated[
    Path | None, typer.Option(help="TOML file with limits that are evaluated without effect.")
]
Record = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Record runs for analyze into a directory (telemetry.record_dir) or a Kafka topic, "
        "kafka://HOST:PORT/TOPIC (telemetry.record_topic).",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Address of the status page and metrics (http.address); port 0 takes a free one; none "
        f"disables it; default: {HTTP_HOST}:{HTTP_PORT}, or a free port if --listen has port 0.",
    ),
]
