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
# Redis itself does not mind that another server writes the same files, and both lose what they confirm.
# The server inherits the lock: whoever is killed may leave it behind, at work.
exec 9>"$folder/lock"
if ! flock --nonblock 9; then
    echo "another redis-server has $folder: end it first" >&2
    exit 1
fi
# The path of a socket may have no more than 107 bytes.
sockets=$(mktemp -d)
# Sessions of their own: an interrupt in the terminal ends neither the server before the broker has
# drained, nor the broker by a second signal.
setsid redis-server --port 0 --unixsocket "$sockets/redis.sock" --dir "$folder" --save '' \
    --appendonly yes --appendfsync always --stream-node-max-bytes 1024 \
    --logfile "$folder/redis.log" &
server=$!
finish() {
    kill "$server" 2>/dev/null || :
    wait "$server" 2>/dev/null || :
    rm -rf "$sockets"
}
trap finish EXIT
trap 'exit 0' INT TERM HUP
until redis-cli -s "$sockets/redis.sock" ping >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || { tail -3 "$folder/redis.log" >&2; exit 1; }
    sleep 0.1
done
setsid .venv/bin/flowguard serve --store redis --redis-url "unix://$sockets/redis.sock" "$@" 9>&- &
broker=$!
trap 'kill "$broker" 2>/dev/null || :' INT TERM HUP
code=0
wait "$broker" || code=$?
while kill -0 "$broker" 2>/dev/null; do  # A signal ended the wait, not the broker.
    code=0
    wait "$broker" || code=$?
done
exit "$code"
