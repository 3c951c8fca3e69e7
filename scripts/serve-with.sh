#!/usr/bin/env bash
# scripts/serve-with.sh redis|kafka [OPTIONS]: a server of its own, in flowguard-redis or flowguard-kafka, and a
# broker that uses it. Both end together; what is stored stays. OPTIONS are the broker's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kind=$1
shift
folder=$PWD/flowguard-$kind
sockets=$(mktemp -d)  # The path of a socket may have no more than 107 bytes.
PATH=$PATH:/usr/sbin

fail() {
    echo "$@" >&2
    exit 1
}

# --- Redis: each write is synced ---------------------------------------------------------------------

need_redis() { command -v redis-server >/dev/null || fail 'redis-server is missing: apt-get install redis-server'; }
run_redis() {
    exec setsid redis-server --port 0 --unixsocket "$sockets/redis.sock" --dir "$folder" --save '' \
        --appendonly yes --appendfsync always --stream-node-max-bytes 1024 --logfile "$folder/redis.log"
}
redis_answers() { redis-cli -s "$sockets/redis.sock" ping >/dev/null 2>&1; }
options_redis() { options=(--store redis --redis-url "unix://$sockets/redis.sock"); }

# --- Kafka: one node, the jars of scripts/setup-kafka.sh ------------------------------------------------

need_kafka() {
    [ -e .peers/kafka/formatted/bootstrap.checkpoint ] || fail 'Kafka is missing: make kafka'
    read -r port controller < <(.venv/bin/python -c 'import socket
both = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*[each.getsockname()[1] for each in both])')
}
run_kafka() {
    mkdir -p "$folder/kafka"
    cp -n .peers/kafka/formatted/bootstrap.checkpoint .peers/kafka/formatted/meta.properties "$folder/kafka"
    printf '%s\n' process.roles=broker,controller node.id=1 log.dirs="$folder/kafka" \
        "listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller" \
        "controller.quorum.voters=1@127.0.0.1:$controller" controller.listener.names=CONTROLLER \
        offsets.topic.replication.factor=1 transaction.state.log.replication.factor=1 \
        transaction.state.log.min.isr=1 auto.create.topics.enable=false >"$folder/server.properties"
    exec setsid java -Xmx512m -XX:+UseSerialGC -cp ".peers/kafka/*" kafka.Kafka "$folder/server.properties" \
        >"$folder/kafka.log" 2>&1
}
kafka_answers() {
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || return 1
    # An open port is not yet a server.
    .venv/bin/python - "127.0.0.1:$port" >/dev/null 2>&1 <<'END'
import asyncio, sys
from aiokafka.admin import AIOKafkaAdminClient

async def main():
    admin = AIOKafkaAdminClient(bootstrap_servers=sys.argv[1])
    await admin.start()
    try:
        sys.exit(not (await admin.describe_cluster())["brokers"])
    finally:
        await admin.close()

asyncio.run(main())
END
}
options_kafka() {
    local settings=$folder/flowguard.toml
    # Which clients have their queues in Kafka. A later --config replaces it.
    [ -e "$settings" ] || printf '[session]\napplication_client_ids = ["app-*"]\n' >"$settings"
    options=(--config "$settings" --data "$folder/broker" --kafka-servers "127.0.0.1:$port")
    echo "kafka on 127.0.0.1:$port"
}

# --- both ends -------------------------------------------------------------------------------------------

trap 'rm -rf "$sockets"' EXIT
"need_$kind"
mkdir -p "$folder"
# A server itself may not mind that another one writes the same files, and both lose what they confirm.
# The server inherits the lock: after a kill it may be left behind, still running.
exec 9>"$folder/lock"
flock --nonblock 9 || fail "another $kind server has $folder: end it first"
# Sessions of their own: an interrupt in the terminal ends neither the server before the broker has
# drained, nor the broker by a second signal.
"run_$kind" &
server=$!
finish() {
    kill "$server" 2>/dev/null || :
    wait "$server" 2>/dev/null || :
    rm -rf "$sockets"
}
trap finish EXIT
trap 'exit 0' INT TERM HUP
until "${kind}_answers"; do
    kill -0 "$server" 2>/dev/null || fail "$(tail -3 "$folder/$kind.log")"
    sleep 0.1
done
"options_$kind"
setsid .venv/bin/flowguard serve "${options[@]}" "$@" 9>&- &
broker=$!
trap 'signals=more; kill "$broker" 2>/dev/null || :' INT TERM HUP
signals=more
while [ "$signals" = more ]; do  # A signal ends the wait, also if the broker has ended meanwhile.
    signals=none code=0
    wait "$broker" || code=$?
done
exit "$code"
