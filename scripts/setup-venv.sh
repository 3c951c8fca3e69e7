#!/usr/bin/env bash
# Makes .venv and installs flowguard into it, in place, with the versions of constraints.txt:
#   scripts/setup-venv.sh run    what the broker needs, and its compiler
#   scripts/setup-venv.sh dev    that, and what development and tests need
#   scripts/setup-venv.sh bench  that, and what the benchmarks need
# Repeatable; an environment that works is kept. PYTHON=... chooses the interpreter for a new one.
# Uses uv where it is installed, else pip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
    run) project=".[compile]" ;;
    dev) project=".[dev,clients]" ;;
    bench) project=".[bench,clients]" ;;
    *) echo "usage: scripts/setup-venv.sh run|dev|bench" >&2; exit 2 ;;
esac

say() { printf '%s\n' "$@" >&2; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
is_whole() {  # can make a virtual environment and compile for it
    "$1" -c 'import ensurepip, os, sysconfig, venv
os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null
}

# A distribution builds its Python with profile-guided optimisation, pyenv by default does not, and
# takes a fifth more processor time: the distribution's comes first, wherever PATH begins.
find_python() {  # sets python
    local candidate old=""
    for candidate in ${PYTHON:-/usr/bin/python3.11 /usr/bin/python3.12 /usr/bin/python3.13}; do
        if new_enough "$candidate" && is_whole "$candidate"; then
            python=$candidate
            return
        fi
    done
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if new_enough "$candidate"; then
            python=$candidate
            return
        fi
        old=$("$candidate" --version 2>/dev/null || true)
    done
    say "flowguard needs Python 3.11 or newer; found here: ${old:-no Python at all}." \
        "  Debian 12 or newer, Ubuntu 24.04 or newer:  apt-get install python3 python3-venv" \
        "  Ubuntu 22.04:                               apt-get install python3.11 python3.11-venv" \
        "Another interpreter: make PYTHON=/path/to/python ..."
    exit 1
}

# Debian ships Python without ensurepip; the package that holds it is named after the version.
need_ensurepip() {
    local package root=()
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    package=$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')
    if [ "$(id -u)" -ne 0 ]; then
        root=(sudo -n)
    fi
    if [ -z "${FLOWGUARD_NO_APT:-}" ] && command -v apt-get >/dev/null \
        && ${root[@]+"${root[@]}"} true 2>/dev/null; then
        say "Python has no venv here: installing the system package $package ..."
        ${root[@]+"${root[@]}"} apt-get -qq update || true
        ${root[@]+"${root[@]}"} env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq install --no-install-recommends "$package" >/dev/null || true
        "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    fi
    say "$("$python" --version) is here, but it cannot make virtual environments." \
        "  Debian, Ubuntu:  apt-get install $package"
    exit 1
}

make_venv() {
    new_enough .venv/bin/python && return
    find_python
    say "making .venv with $("$python" --version) ..."
    if command -v uv >/dev/null && uv venv --quiet --clear --seed --python "$python" .venv; then
        return
    fi
    need_ensurepip
    "$python" -m venv --clear .venv
}

# In place the sources are what runs: nothing is compiled for that.
export FLOWGUARD_PURE=1

install() {
    if command -v uv >/dev/null; then
        say "installing $project with uv ..."
        uv pip install --quiet --python .venv/bin/python \
            --constraints constraints.txt --build-constraints constraints.txt -e "$project" && return
        say "uv did not manage; trying pip."
    fi
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        .venv/bin/python -m ensurepip >/dev/null 2>&1 || {
            say "There is no pip in .venv: remove the folder .venv and try again."
            exit 1
        }
    fi
    say "installing $project with pip ..."
    # Variables, not options: they hold for the build of flowguard itself too (two names: old and
    # new pip). Like uv, leave bytecode to the first import: a quarter less processor time.
    PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_RETRIES=2 \
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e "$project" \
        2>&1 | tee .venv/install.log >&2
}

# The distribution is flowguard-mqtt. What is called flowguard is this program under its earlier name,
# or somebody else's, which would hide it.
remove_namesake() {
    compgen -G '.venv/lib/python*/site-packages/flowguard-[0-9]*.dist-info' >/dev/null || return 0
    say "removing the distribution flowguard: this one is flowguard-mqtt ..."
    .venv/bin/python -m pip uninstall --quiet --yes --disable-pip-version-check flowguard >&2 \
        || uv pip uninstall --quiet --python .venv/bin/python flowguard
}

unreachable='NewConnectionError|ConnectTimeout|ReadTimeout|ConnectionReset|ProxyError|SSLError'
unreachable+='|Connection refused|name resolution|No matching distribution'

make_venv
remove_namesake
if ! install; then
    if grep -qE "$unreachable" .venv/install.log; then
        say "" "pip does not reach its package registry from here (its own words are above). Look at the" \
            "network, at HTTPS_PROXY, or name a mirror in PIP_INDEX_URL; then run make again."
    else
        say "" "The packages could not be installed; pip says above why."
    fi
    exit 1
fi
touch .venv/.ready-run
[ "$1" = run ] || touch .venv/.ready-dev
[ "$1" != bench ] || touch .venv/.ready-bench
