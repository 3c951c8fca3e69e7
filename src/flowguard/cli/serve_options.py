"""The options of `flowguard serve`."""

from pathlib import Path
from typing import Annotated

import typer

HTTP_HOST = "127.0.0.1"
HTTP_PORT = 9883
HTTP_NONE = "none"

Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="HOST:PORT, mqtts://HOST:PORT, ws://, wss://, unix:PATH; port 0: a free one; may be "
        "repeated. "
        "[default: 127.0.0.1:1883]",
    ),
]
Cert = Annotated[
    Path | None, typer.Option(help="Certificate and those above it, PEM: network.cert.")
]
Key = Annotated[Path | None, typer.Option(help="Its private key, PEM: network.key.")]
ClientCa = Annotated[
    Path | None,
    typer.Option(help="Authorities that sign certificates of clients, PEM: network.client_ca."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(help="Users, as `flowguard passwd` writes them: network.password_file."),
]
TokenKeys = Annotated[
    Path | None,
    typer.Option(
        help="Keys of tokens (JWT), PEM or JWKS; with --token-audience: network.token_keys."
    ),
]
TokenAudience = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who tokens must be for, aud: network.token_audience."),
]
Acl = Annotated[
    Path | None,
    typer.Option(
        help="Who may publish and receive what: rules in TOML (.toml), or Mosquitto's ACL file: "
        "network.acl_file."
    ),
]
AllowAllTopics = Annotated[
    bool,
    typer.Option("--allow-all-topics", help="Who is in may do everything: there are no rules."),
]
AllowAnonymous = Annotated[
    bool, typer.Option("--allow-anonymous", help="Clients without a user name may connect.")
]
AllowPlaintext = Annotated[
    bool,
    typer.Option("--allow-plaintext", help="Other machines may reach listeners without TLS."),
]
Data = Annotated[Path, typer.Option(help="Directory for what must survive.")]
Config = Annotated[Path | None, typer.Option(help="TOML file with settings.")]
LimitsFile = Annotated[
    Path | None,
    typer.Option(help="TOML file with limits, section flow of the settings: goes before --config."),
]
StoreName = Annotated[
    str | None, typer.Option(help="Where sessions live, rocks, memory or redis: store.kind.")
]
RedisUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Its address with --store redis: redis.url.")
]
KafkaServers = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT,...",
        help="Queues of applications in topics of this Kafka: kafka.servers, and "
        "store.application_store.",
    ),
]
Takeover = Annotated[
    bool,
    typer.Option(
        "--takeover", help="Stand by until the broker that has this store ends: redis.takeover."
    ),
]
PolicyOption = Annotated[
    str | None, typer.Option(help="Whose law protects: flow.policy of the settings.")
]
ShadowPolicy = Annotated[
    str | None, typer.Option(help="Whose law watches, without effect: flow.shadow_policy.")
]
ShadowFile = Annotated[
    Path | None, typer.Option(help="TOML file with limits that watch, without effect.")
]
Record = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Directory to record runs in, for analyze: telemetry.record_dir; or a topic of Kafka, "
        "kafka://HOST:PORT/TOPIC: telemetry.record_topic.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Metrics, status and health; port 0: a free one; none: nothing of it. "
        f"[default: {HTTP_HOST}:{HTTP_PORT}, or a free port where --listen has port 0]",
    ),
]
