#!/usr/bin/env bash
# A redis-server of its own in flowguard-redis, which syncs each write, and a broker on it. Both end
# together; what is stored stays. More words are the broker's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PATH=$PATH:/usr/sbin
if ! command -v redis-server >/dev/null; then
    echo 'redis-server is missing: apt-get install redis-server' >&2
    exit 1
fi
folder=$PWD/flowguard-redis
mkdir -p "$folder"
# The path of a socket may have no more than 107 bytes.
sockets=$(mktemp -d)
redis-server --port 0 --unixsocket "$sockets/redis.sock" --dir "$folder" --save '' \
    --appendonly yes --appendfsync always --stream-node-max-bytes 1024 \
    --logfile "$folder/redis.log" &
server=$!
broker=""
finish() {
    [ -z "$broker" ] || { kill "$broker" 2>/dev/null || :; wait "$broker" || :; }
    kill "$server" 2>/dev/null || :
    wait "$server" 2>/dev/null || :
    rm -rf "$sockets"
}
trap finish EXIT
trap 'exit 0' INT TERM
until redis-cli -s "$sockets/redis.sock" ping >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || { tail -3 "$folder/redis.log" >&2; exit 1; }
    sleep 0.1
done
.venv/bin/flowguard serve --store redis --redis-url "unix://$sockets/redis.sock" "$@" &
broker=$!
wait "$broker"
