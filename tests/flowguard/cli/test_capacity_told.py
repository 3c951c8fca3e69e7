"""Capacity and certificates: what is logged is in force, and what cannot be is said."""

import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from flowguard.bounds import Bounds
from flowguard.broker.layers.certificates import expired
from flowguard.broker.sockets.descriptors import Descriptors, places_for, shortfalls
from flowguard.config import Settings
from flowguard.network_settings import NetworkSettings
from tests.flowguard.cli.test_reload import flowguard
from tests.interop.broker import running_broker
from tests.support.authority import Authority

MIB = 1024 * 1024
FEW = Descriptors(20_000, 46, 600)
MANY = Descriptors(1_000_000, 46, 600)


def bounds(memory_mib: int, **sections: object) -> tuple[Settings, Bounds]:
    settings = Settings.model_validate(sections)
    return settings, Bounds.of(settings, memory_mib * MIB)


def test_the_number_in_force_is_the_least_of_memory_and_descriptors() -> None:
    _, small = bounds(96)
    assert places_for(small, MANY) == places_for(small, FEW) == small.connections_max == 100
    _, large = bounds(2_048)
    assert places_for(large, FEW) == FEW.places == 19_354
    assert places_for(large, MANY) == large.connections_max


@pytest.mark.parametrize("memory_mib", [96, 100, 110])
def test_a_memory_limit_that_leaves_nothing_for_clients_is_said(memory_mib: int) -> None:
    asked, small = bounds(memory_mib)
    (said,) = shortfalls(small, MANY)
    assert "never calm" in said
    assert "100 are in force" in said
    raised_bytes = int(said.rpartition(" ")[2].replace(",", ""))
    assert Bounds.of(asked, raised_bytes).shortfall is None
    assert shortfalls(bounds(128)[1], MANY) == []


def test_more_clients_than_there_are_descriptors_for_are_said() -> None:
    listeners = [{"address": "127.0.0.1:0", "connections_max": 20_000}, "127.0.0.1:1"]
    _, large = bounds(4_096, node={"connections_max": 200_000}, network={"listeners": listeners})
    first, second = shortfalls(large, FEW)
    text = "clients, but only 19,354 can connect at once: raise ulimit -n"
    assert first == f"node.connections_max allows 200,000 {text}"
    assert second == f"mqtt://127.0.0.1:0 allows 20,000 {text}"
    assert shortfalls(large, MANY) == []
    assert shortfalls(bounds(4_096)[1], FEW) == []  # No number was asked for.


def test_a_listener_for_more_clients_than_all_may_be_is_said() -> None:
    network = {"listeners": [{"address": "127.0.0.1:0", "connections_max": 50}]}
    _, found = bounds(256, node={"connections_max": 10}, network=network)
    (said,) = shortfalls(found, MANY)
    text = "allows 50 clients, but only 10 can connect at once: raise node.connections_max"
    assert said.endswith(text)


def test_each_file_with_a_certificate_that_has_expired_is_said(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good, old = authority.issue("127.0.0.1"), authority.issue("localhost", days=-1)
    chain = tmp_path / "chain.pem"
    shutil.copy(good.cert, chain)
    chain.write_bytes(chain.read_bytes() + authority.cert.read_bytes())
    old_chain = tmp_path / "old-chain.pem"
    shutil.copy(old.cert, old_chain)
    named = {"server_name": "a.example", "cert": old.cert, "key": old.key}
    listeners = [
        {"address": "mqtts://127.0.0.1:0", "certs": [named]},
        {"address": "mqtts://127.0.0.1:1", "cert": old.cert, "key": old.key},
        {"address": "mqtts://127.0.0.1:2", "chain": old_chain},
    ]
    network = NetworkSettings.model_validate(
        {"listeners": listeners, "cert": chain, "key": good.key, "client_ca": authority.cert}
    )
    now_s = authority.cert.stat().st_mtime
    said, said_of_chain = expired(network, now_s)
    assert said_of_chain.startswith(f"{old_chain}: a certificate in it expired on ")
    assert said.startswith(f"{old.cert}: a certificate in it expired on ")
    later = expired(network, now_s + 40 * 86_400)
    assert [each.partition(":")[0] for each in later] == [
        str(path) for path in (chain, authority.cert, old.cert, old_chain)
    ]


def test_a_list_of_revoked_certificates_that_has_expired_is_said(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    of_all, of_one = authority.revoke(authority.issue("a")), authority.revoke()
    listeners = [{"address": "mqtts://127.0.0.1:0", "crl": of_one}]
    network = NetworkSettings.model_validate({"listeners": listeners, "crl": of_all})
    now_s = of_all.stat().st_mtime
    assert expired(network, now_s) == []
    said = expired(network, now_s + 31 * 86_400)
    assert [each.partition(" expired on ")[0] for each in said] == [
        f"{path}: its list of revoked certificates" for path in (of_all, of_one)
    ]
    assert all(each.endswith("so each client is rejected: renew") for each in said)


def test_a_certificate_that_no_listener_uses_may_be_missing(tmp_path: Path) -> None:
    network = NetworkSettings(cert=tmp_path / "missing.pem")
    assert expired(network, 0.0) == []


@pytest.mark.slow
def test_check_and_serve_say_what_is_lacking(tmp_path: Path) -> None:
    old = Authority(tmp_path).issue("127.0.0.1", days=-1)
    config = tmp_path / "flowguard.toml"
    config.write_text(
        f"[flow]\nmemory_max_bytes = {96 * MIB}\n[network]\n"
        f'listeners = ["mqtts://127.0.0.1:0"]\ncert = "{old.cert}"\nkey = "{old.key}"\n'
    )
    code, said = flowguard("check", str(config))
    assert code == 2
    assert f"{config} is good, but this machine is not ready for it" in said
    assert "never calm" in said
    assert "expired on" in said
    with running_broker(tmp_path / "b", "--config", str(config), listen=False) as broker:
        logged = re.sub(r"\x1b\[[0-9;]*m", "", broker.log.read_text())
        assert "connections_max=100 " in logged
        assert logged.count("capacity lacking") == 1
        assert logged.count("certificate expired") == 1
        broker.process.send_signal(signal.SIGHUP)
        while broker.log.read_text().count("certificate expired") < 2:
            assert broker.process.poll() is None
            time.sleep(0.01)
