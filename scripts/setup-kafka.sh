#!/usr/bin/env bash
# Jars from Maven, into .peers: a Kafka server (.peers/kafka) and how Spark reads from one
# (.peers/spark-kafka). Tests and benchmarks start the server from them; nothing is installed on the
# system but Maven itself, as root, never with FLOWGUARD_NO_APT=1. Quick where the jars are there.
# `setup-kafka.sh kafka` leaves Spark's jars out.
# What cannot be had is named, and is an error; who can do without says so (setup-test-peers.sh).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$@" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
fail() {
    say "$@"
    exit 1
}

need_maven() {
    have mvn && return
    if have apt-get && [ "$(id -u)" -eq 0 ] && [ -z "${FLOWGUARD_NO_APT:-}" ]; then
        say "installing maven with apt-get (FLOWGUARD_NO_APT=1 prevents it) ..."
        apt-get -qq -o DPkg::Lock::Timeout=60 update
        DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 \
            install --no-install-recommends maven >/dev/null
    fi
    have mvn || fail "Maven is missing, which fetches Kafka's jars (apt-get install maven)."
}

fetch() {  # name of the pom in scripts/jars, and of the folder in .peers
    local pom=scripts/jars/$1.xml folder=.peers/$1
    cmp -s "$pom" "$folder/pom.xml" && return
    need_maven
    say "fetching jars with Maven: $1, into $folder ..."
    rm -rf "$folder"
    mkdir -p "$folder"
    mvn -q -B -f "$pom" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$PWD/$folder" >"$folder/maven.log" 2>&1 \
        || fail "Maven could not fetch $1:" "$(grep -m 2 ERROR "$folder/maven.log" | cut -c1-300)"
    cp "$pom" "$folder/pom.xml"  # last: with it the folder is whole
}

# What an empty folder of a node holds is the same for all: made once here, copied by each start.
format() {
    local folder=$PWD/.peers/kafka/formatted properties=.peers/kafka/format.properties
    printf '%s\n' process.roles=broker,controller node.id=1 log.dirs="$folder" \
        controller.quorum.voters=1@127.0.0.1:9093 controller.listener.names=CONTROLLER \
        listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093 >"$properties"
    java -XX:TieredStopAtLevel=1 -cp ".peers/kafka/*" kafka.tools.StorageTool \
        format -t Zmxvd2d1YXJkMDAwMDAwMA -c "$properties" >.peers/kafka/format.log 2>&1 \
        || fail "Kafka could not format a folder:" "$(tail -n 3 .peers/kafka/format.log)"
}

have java || fail "Java is missing, on which Kafka runs (apt-get install openjdk-17-jre-headless)."
fetch kafka
[ -e .peers/kafka/formatted/bootstrap.checkpoint ] || format
[ "${1:-}" = kafka ] || fetch spark-kafka
