#!/bin/sh
# The first process of the image. Without words, or with options, it runs `flowguard serve` on /data/store.
# Other words are a command of flowguard, such as: passwd add ann --file /data/users
set -eu

case "${1:-serve}" in
    -*) ;;
    serve) [ $# -eq 0 ] || shift ;;
    *) exec flowguard "$@" ;;
esac
if [ ! -w /data ]; then
    echo "flowguard cannot write /data: the folder must belong to user $(id -u). Use a named volume, or chown it." >&2
    exit 73
fi
config=/etc/flowguard/flowguard.toml
if [ ! -e "$config" ]; then
    config=/opt/flowguard/open.toml
    echo "no /etc/flowguard/flowguard.toml: this broker is for trials. Any client that reaches port 1883 may read all."
    echo "to protect it: write flowguard.toml with TLS, users and rules (docs/operate/security.md), mount its folder"
    echo "at /etc/flowguard, and publish port 8883 in place of 1883"
fi
# The HTTP port is open to other containers and machines, so it always has a token.
if [ -n "${FLOWGUARD_HTTP__TOKEN_FILE:-}" ] || ! grep -Eq '^[[:space:]]*(http\.)?token_file[[:space:]]*=' "$config"; then
    token=${FLOWGUARD_HTTP__TOKEN_FILE:-/data/http-token}
    if [ ! -s "$token" ]; then # Several nodes may share it: the first one that links its own has made it.
        new="$token.$(uname -n)"
        (umask 027 && python -c 'import secrets; print(secrets.token_urlsafe(24))' >"$new")
        ln "$new" "$token" 2>/dev/null || [ -s "$token" ]
        rm "$new"
    fi
    export FLOWGUARD_HTTP__TOKEN_FILE="$token"
    echo "the password of the page and of /metrics at port 9883: docker exec CONTAINER cat $token"
fi
exec flowguard serve --config "$config" --data /data/store --http 0.0.0.0:9883 "$@"
