#!/usr/bin/env bash
# What `make fuzz` needs besides .venv: clang (a system package; as root or with a passwordless sudo,
# never with FLOWGUARD_NO_APT=1) and atheris. Repeatable, and quick when both are there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$@" >&2; }

if ! command -v clang >/dev/null; then
    root=()
    [ "$(id -u)" -eq 0 ] || root=(sudo -n)
    if [ -z "${FLOWGUARD_NO_APT:-}" ] && command -v apt-get >/dev/null \
        && ${root[@]+"${root[@]}"} true 2>/dev/null; then
        say "installing the system package clang ..."
        ${root[@]+"${root[@]}"} apt-get -qq update || true
        ${root[@]+"${root[@]}"} env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install --no-install-recommends clang >/dev/null || true
    fi
fi
command -v clang >/dev/null || { say "no clang here; Debian, Ubuntu:  apt-get install clang"; exit 1; }
.venv/bin/python -c 'import atheris' 2>/dev/null && exit
say "installing atheris with pip ..."
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    atheris || { say "atheris cannot be installed: pip says above why."; exit 1; }
