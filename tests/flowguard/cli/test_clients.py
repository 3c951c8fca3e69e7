"""`flowguard clients` against a real broker."""

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flowguard.cli.remote.ask import POST_HEADERS
from flowguard.codec.packets import Connack, Disconnect, Publish, Suback, Subscribe
from flowguard.types import Properties, ReasonCode, SubscriptionOptions
from tests.flowguard.cli.http_port import http_address, run
from tests.interop.broker import PATIENCE_S, Broker, running_broker
from tests.support.caller import Caller

KEPT = Properties(session_expiry_interval=1_000)


def connected(broker: Broker, client_id: str, *, clean_start: bool = True) -> tuple[Caller, bool]:
    caller = Caller(
        broker, client_id=client_id, clean_start=clean_start, properties=KEPT, username="ann"
    )
    connack = caller.read()
    assert isinstance(connack, Connack)
    return caller, connack.session_present


@pytest.mark.slow
def test_list_kick_and_forget(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        device, _ = connected(broker, "car/1")
        other, _ = connected(broker, "van")
        code, said, _ = run("clients", "list", "car*", "--json", *url)
        assert code == 0
        (row,) = [json.loads(line) for line in said.splitlines()]
        assert (row["client_id"], row["state"], row["user"]) == ("car/1", "connected", "ann")
        code, said, _ = run("clients", "list", *url)
        assert (code, "car/1" in said, "van" in said, "connected" in said) == (0, True, True, True)
        code, said, complaint = run("clients", "list", "--limit", "1", *url)
        assert ("car/1" in said, "van" in said) == (True, False)
        assert "There are more than 1" in complaint
        assert run("clients", "show", "car/1", *url)[0] == 0

        assert run("clients", "kick", "car/1", *url)[0] == 0
        ended = device.read()
        assert isinstance(ended, Disconnect)
        assert ended.reason_code == ReasonCode.ADMINISTRATIVE_ACTION
        code, _, complaint = run("clients", "kick", "car/1", *url)
        assert (code, "no connection of this client" in complaint) == (1, True)
        for _ in range(2):
            device.close()
            device, _ = connected(broker, "car/1", clean_start=False)
            assert run("clients", "kick", "car/1", *url)[0] == 0
        (row,) = [json.loads(each) for each in run("clients", "flapping", "--json", *url)[1:2]]
        assert (row["client_id"], row["ends"], row["by"]) == ("car/1", 3, "broker")
        assert row["reason"] == "administrative_action"
        assert row["address"].startswith("127.0.0.1:")
        table = run("clients", "flapping", *url)[1]
        assert all(word in table for word in ("car/1", "last end", "absent"))
        device.close()
        device, is_present = connected(broker, "car/1", clean_start=False)
        assert is_present

        assert run("clients", "forget", "car/1", *url)[0] == 0
        assert isinstance(device.read(), Disconnect)
        device.close()
        device, is_present = connected(broker, "car/1", clean_start=False)
        assert not is_present
        code, _, complaint = run("clients", "forget", "nobody", *url)
        assert (code, "no session of this client" in complaint) == (1, True)
        for caller in (device, other):
            caller.close()
        log = Path(broker.log).read_text()
        assert log.count("audit") == 6
        assert "action=clients/forget" in log


@pytest.mark.slow
def test_list_has_client_ids_as_they_are_in_json_only(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        device, _ = connected(broker, "van\x1b[31m")
        (row,) = map(json.loads, run("clients", "list", "--json", *url)[1].splitlines())
        assert row["client_id"] == "van\x1b[31m"
        table = run("clients", "list", *url)[1]
        assert ("\x1b" in table, "\\x1b[31m" in table) == (False, True)
        assert run("clients", "kick", row["client_id"], *url)[0] == 0
        device.close()


@pytest.mark.slow
def test_forgotten_session_is_not_in_the_store_after_a_kill(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    with running_broker(tmp_path / "a", *data, exit_code=-signal.SIGKILL) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        for name in ("absent", "kept"):
            caller, _ = connected(broker, name)
            caller.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
            assert isinstance(caller.read(), Suback)
            caller.send(Disconnect())
            assert caller.read() is None
            caller.close()
        publisher, _ = connected(broker, "publisher")
        publisher.send(Publish("t", b"queued", 1, packet_id=1))
        publisher.read()
        publisher.close()
        assert run("clients", "forget", "absent", *url)[0] == 0
        broker.process.kill()
        broker.process.wait()
    with running_broker(tmp_path / "b", *data) as broker:
        url = ("--url", f"http://{http_address(broker)}")
        rows = run("clients", "list", "--state", "absent", "--json", *url)[1].splitlines()
        names = {json.loads(row)["client_id"]: json.loads(row)["queue_messages"] for row in rows}
        assert ("absent" in names, names["kept"]) == (False, 1)


@pytest.mark.slow
def test_change_without_the_header_is_rejected(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        url = f"http://{http_address(broker)}/clients/kick"
        request = urllib.request.Request(url, b'{"client_id": "c"}')
        with pytest.raises(urllib.error.HTTPError, match="403"):  # A page of the web asks so.
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(url, timeout=PATIENCE_S)
    log = Path(broker.log).read_text()
    assert [line for line in log.splitlines() if "audit" in line and "status=403" in line]
    assert "status=405" not in log


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_rejected_changes_are_audited_a_few_per_interval(tmp_path: Path, workers: str) -> None:
    (tmp_path / "token").write_text("a token of at least 16 bytes\n")
    config = tmp_path / "broker.toml"
    config.write_text(f'[http]\ntoken_file = "{tmp_path}/token"\n')
    with running_broker(tmp_path, "--config", str(config), "--workers", workers) as broker:
        url = f"http://{http_address(broker)}/retained/delete"
        headers = {**POST_HEADERS, "X-Forwarded-For": "192.0.2.1"}
        for authorization in [{}] * 5 + [{"Authorization": "Bearer wrong"}]:
            request = urllib.request.Request(url, b'{"filter": "#"}', headers | authorization)
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(request, timeout=PATIENCE_S)
        right = {"Authorization": "Bearer a token of at least 16 bytes"}
        request = urllib.request.Request(url, b'{"filter": "#"}', headers | right)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert json.loads(answer.read()) == {"deleted": 0, "goes_on": False}
    log = Path(broker.log).read_text().splitlines()
    assert len([line for line in log if "status=401" in line]) == 3
    assert [line for line in log if "audit, not shown" in line and "401=3" in line]
    done = [line for line in log if "action=retained/delete" in line and "status=200" in line]
    assert len(done) == int(workers), "each worker has deleted its own"
    assert all("127.0.0.1, with the token" in line for line in done)
