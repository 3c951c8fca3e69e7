"""A real proxy in front of a real broker: what operators see, ask and do."""

import json
import re
import signal
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Disconnect, Puback, Pubrec, Suback, Subscribe
from flowguard.types import MQTT_5, MQTT_311, Publish, ReasonCode, SubscriptionOptions
from tests.broker_adapter.upstream import MOSQUITTO, mosquitto
from tests.broker_adapter.watch.running import Proxy, running_proxy, until
from tests.flowguard.cli.http_port import run
from tests.flowguard.cli.test_identities import passwd
from tests.interop.broker import PATIENCE_S, running_broker
from tests.support.authority import Authority
from tests.support.caller import Caller

pytestmark = pytest.mark.slow


def client(proxy: Proxy, name: str, version: int = MQTT_5) -> Caller:
    caller = Caller(proxy, version, client_id=name)
    connack = caller.read()
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0
    return caller


def value(proxy: Proxy, series: str) -> float:
    """Return the value of one series of /metrics."""
    found = re.search(rf"^{re.escape(series)} (\S+)$", proxy.get("/metrics")[1], re.MULTILINE)
    assert found is not None, series
    return float(found[1])


@pytest.mark.peers
@pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto")
def test_mosquitto_behind_is_shown_and_missed(tmp_path: Path) -> None:
    with (
        mosquitto(tmp_path) as behind,
        running_proxy(tmp_path, ("127.0.0.1", behind.port)) as proxy,
        client(proxy, "me", MQTT_311) as me,
    ):
        me.send(Publish("a", b"x", 2, packet_id=2))
        assert isinstance(me.read(), Pubrec)
        assert value(proxy, "flowguard_acknowledgement_seconds_count") == 1
        assert "(MQTT 3.1.1)" in run("explain", "me", "--url", proxy.url)[1]
        behind.kill()
        assert me.read() is None
        until(lambda: proxy.get("/ready")[0] == 503)
        assert value(proxy, 'flowguard_disconnects_total{reason="closed"}') == 1
        behind.start()
        until(lambda: proxy.get("/ready")[0] == 200)


def test_renewed_certificate_is_in_force_after_a_reload(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("127.0.0.1", days=5)
    words = ("--listen", "mqtts://127.0.0.1:0", "--cert", str(pair.cert), "--key", str(pair.key))
    with (
        running_broker(tmp_path) as broker,
        running_proxy(tmp_path, (broker.host, broker.port), *words) as proxy,
    ):
        series = f'flowguard_certificate_expiry_seconds{{file="{pair.cert}"}}'
        before = value(proxy, series)
        (tmp_path / "new").mkdir()
        renewed = Authority(tmp_path / "new").issue("127.0.0.1", days=60)
        pair.cert.write_bytes(b"no certificate")
        code, _, complaint = run("reload", "--url", proxy.url)
        assert (code, str(pair.cert) in "".join(complaint.split("\n"))) == (1, True)
        pair.cert.write_bytes(renewed.cert.read_bytes())
        pair.key.write_bytes(renewed.key.read_bytes())
        code, said, complaint = run("reload", "--url", proxy.url)
        assert code == 0, complaint
        assert "reloaded: 1 certificate," in said
        assert value(proxy, series) > before + 50 * 86_400


def test_metrics_top_explain_and_list_show_a_client(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path) as broker,
        running_proxy(tmp_path, (broker.host, broker.port)) as proxy,
        client(proxy, "me") as me,
    ):
        assert proxy.get("/ready") == (200, "ready\n")
        me.send(Subscribe(1, (("a", SubscriptionOptions(0)),)), Publish("a", b"x", 1, packet_id=2))
        got = {type(me.read()) for _ in range(3)}
        assert got == {Suback, Puback, Publish}
        name = f"{broker.host}:{broker.port}"
        assert value(proxy, "flowguard_clients_connected") == 1
        assert value(proxy, "flowguard_publish_received_total") == 1
        assert value(proxy, "flowguard_publish_sent_total") == 1
        assert value(proxy, "flowguard_acknowledgement_seconds_count") == 1
        assert value(proxy, "flowguard_connect_service_seconds_count") == 1
        assert value(proxy, f'flowguard_upstream_up{{upstream="{name}"}}') == 1
        assert value(proxy, f'flowguard_upstream_clients{{upstream="{name}"}}') == 1
        code, said, complaint = run("top", proxy.url, "--once")
        assert code == 0, complaint
        assert re.search(r"clients +1 connected, 0 paused", said)
        assert re.search(r"messages in +1 ", said)
        assert re.search(rf"behind +1 clients, {name} answers", said)
        code, said, complaint = run("explain", "me", "--url", proxy.url)
        assert code == 0, complaint
        assert f"to {name} (MQTT 5.0)" in said
        code, said, _ = run("clients", "list", "--url", proxy.url, "--json")
        (row,) = map(json.loads, said.splitlines())
        assert (row["client_id"], row["state"]) == ("me", "connected")
        page = proxy.get("/")
        assert page[0] == 200
        assert run("explain", "nobody", "--url", proxy.url)[0] == 1


def test_kick_ends_the_connection_with_its_reason(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path) as broker,
        running_proxy(tmp_path, (broker.host, broker.port)) as proxy,
        client(proxy, "new") as new,
        client(proxy, "old", MQTT_311) as old,
    ):
        for name in ("new", "old"):
            code, _, complaint = run("clients", "kick", name, "--url", proxy.url)
            assert code == 0, complaint
        ended = new.read()
        assert isinstance(ended, Disconnect)
        assert ended.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        assert old.read() is None
        series = 'flowguard_disconnects_total{reason="administrative_action"}'
        assert value(proxy, series) == 2
        code, said, _ = run("explain", "old", "--url", proxy.url)
        assert (code, "The proxy ended its last connection" in said) == (0, True)
        assert run("clients", "kick", "old", "--url", proxy.url)[0] == 1
        assert proxy.log.read_text().count("action=clients/kick") == 3


def test_readiness_and_top_say_that_the_broker_behind_is_lost_and_back(tmp_path: Path) -> None:
    with running_broker(tmp_path / "first") as broker:
        upstream = (broker.host, broker.port)
        proxy_at = running_proxy(tmp_path, upstream)
        proxy = proxy_at.__enter__()
        assert proxy.get("/ready")[0] == 200
    words = "not ready: the broker behind has not answered for"
    until(lambda: words in proxy.get("/ready")[1])
    assert proxy.get("/ready")[0] == 503
    assert proxy.get("/health") == (200, "alive\n")
    assert value(proxy, "flowguard_upstreams_away_seconds") > 0
    assert value(proxy, f'flowguard_upstream_up{{upstream="{upstream[0]}:{upstream[1]}"}}') == 0
    _, said, _ = run("top", proxy.url, "--once")
    assert "the broker behind has not answered for" in said
    assert "Connection refused" in said
    listen = f"{upstream[0]}:{upstream[1]}"
    with running_broker(tmp_path / "second", "--listen", listen, "--http", "none"):
        until(lambda: proxy.get("/ready")[0] == 200)
        proxy.wait_for_log("upstream available again")
        proxy_at.__exit__(None, None, None)
    assert "upstream unavailable" in proxy.log.read_text()


def test_reload_changes_limits_and_names_a_bad_file(tmp_path: Path) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text("[flow]\nwindow_max = 50\n")
    with (
        running_broker(tmp_path) as broker,
        running_proxy(tmp_path, (broker.host, broker.port), "--config", str(config)) as proxy,
        client(proxy, "me") as me,
    ):
        assert proxy.status()["window"]["limit_max"] == 50
        config.write_text("[flow]\nwindow_max = 20\ncost_bytes = 1000\n")
        code, said, complaint = run("reload", "--url", proxy.url)
        assert code == 0, complaint
        assert "limits changed: flow.window_max" in said
        assert "only after a restart: flow.cost_bytes" in said
        assert proxy.status()["window"]["limit_max"] == 20
        assert json.loads(proxy.get("/limits")[1])["flow.window_max"]["value"] == 20
        config.write_text("[flow]\nwindow_max = 'many'\n")
        code, _, complaint = run("reload", "--url", proxy.url)
        assert (code, "flow.window_max" in complaint) == (1, True)
        proxy.process.send_signal(signal.SIGHUP)
        proxy.wait_for_log("signal received")
        until(lambda: proxy.log.read_text().count("reload failed; nothing has changed") == 2)
        assert proxy.status()["window"]["limit_max"] == 20
        config.write_text("[flow]\nwindow_max = 30\n")
        proxy.process.send_signal(signal.SIGHUP)
        until(lambda: proxy.status()["window"]["limit_max"] == 30)
        me.send(Publish("a", b"x", 1, packet_id=2))
        assert isinstance(me.read(), Puback)


def test_drain_disconnects_clients_and_ends_the_proxy(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path) as broker,
        running_proxy(tmp_path, (broker.host, broker.port)) as proxy,
    ):
        callers = [client(proxy, f"c{number}") for number in range(6)]
        code, said, complaint = run("drain", "--over", "1s", "--url", proxy.url)
        assert code == 0, complaint
        assert "the proxy has ended; 6 clients were connected" in said
        assert proxy.process.wait(PATIENCE_S) == 0
        for caller in callers:
            ended = caller.read()
            assert isinstance(ended, Disconnect)
            assert ended.reason_code == ReasonCode.SERVER_SHUTTING_DOWN
            caller.close()


def test_while_it_drains_it_is_not_ready_and_other_clients_go_on(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_NODE__DRAIN_OVER_S": "3600"}
    killed = 128 + signal.SIGTERM
    with (
        running_broker(tmp_path) as broker,
        running_proxy(
            tmp_path, (broker.host, broker.port), environment=environment, exit_code=killed
        ) as proxy,
    ):
        callers = [client(proxy, f"c{number}") for number in range(3)]
        proxy.process.send_signal(signal.SIGTERM)
        proxy.wait_for_log("leaving")
        assert proxy.get("/ready") == (503, "not ready: draining\n")
        with pytest.raises(ConnectionRefusedError):
            Caller(proxy, client_id="late")
        # The oldest one leaves at once, the newest one last.
        callers[2].send(Publish("a", b"x", 1, packet_id=2))
        assert isinstance(callers[2].read(), Puback)
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(PATIENCE_S) == killed
        for caller in callers:
            caller.close()


def test_log_has_the_lives_of_clients_and_who_was_rejected(tmp_path: Path) -> None:
    environment = {"FLOWGUARD_LOG__FORMAT": "json", "FLOWGUARD_LOG__CLIENTS": "debug"}
    users = tmp_path / "users"
    assert passwd("add", "ann", "--file", str(users), stdin="secret\nsecret\n").returncode == 0
    rights = ("--password-file", str(users), "--allow-all-topics")
    with (
        running_broker(tmp_path, *rights) as broker,
        running_proxy(tmp_path, (broker.host, broker.port), environment=environment) as proxy,
    ):
        with Caller(proxy, client_id="mallory", username="mallory", password=b"guess") as wrong:
            connack = wrong.read()
            assert isinstance(connack, Connack)
        with Caller(proxy, client_id="me", username="ann", password=b"secret") as right:
            connack = right.read()
            assert isinstance(connack, Connack)
            assert connack.reason_code == 0
            right.send(Disconnect())
            assert right.read() is None
        series = 'flowguard_authentication_failures_total{reason="bad_user_name_or_password"}'
        until(lambda: value(proxy, series) == 1)
        until(lambda: value(proxy, "flowguard_clients_connected") == 0)
    lines = [json.loads(line) for line in proxy.log.read_text().splitlines()]
    by_event = {line["event"]: line for line in lines}
    assert by_event["started"]["upstreams"] == f"{broker.host}:{broker.port}"
    failed = by_event["authentication failed"]
    assert (failed["client_id"], failed["user_name"]) == ("mallory", "mallory")
    assert failed["why"] == "answer of the broker behind"
    connected = by_event["connected"]
    assert (connected["client_id"], connected["version"]) == ("me", "5.0")
    ended = by_event["disconnected"]
    assert (ended["reason"], ended["by"]) == ("normal_disconnection", "client")
