"""Capacity and certificates: what is logged is in force, and what cannot be is said."""

import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flowguard.app.workers.shares import check_shares
from flowguard.bounds import Bounds
from flowguard.broker import memory
from flowguard.broker.layers.certificates import expired
from flowguard.broker.memory import available_bytes, missing_memory, require_memory
from flowguard.broker.sockets.descriptors import Descriptors, places_for, shortfalls
from flowguard.config import Settings
from flowguard.errors import ConfigError, UnreadyError
from flowguard.network_settings import NetworkSettings
from tests.flowguard.cli.test_manners import run_in
from tests.flowguard.cli.test_reload import flowguard
from tests.interop.broker import environment_with, running_broker
from tests.support.authority import Authority
from tests.support.patience import HANG_S

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
def test_a_memory_limit_that_leaves_nothing_for_clients_is_an_error(memory_mib: int) -> None:
    asked, small = bounds(memory_mib)
    with pytest.raises(UnreadyError, match="reject all clients as overloaded") as refused:
        require_memory(small)
    said = str(refused.value)
    assert f"of {memory_mib * MIB:,} bytes (3/4 of the memory here) the broker takes" in said
    raised_bytes = int(said.rpartition(" ")[2].replace(",", ""))
    require_memory(Bounds.of(asked, raised_bytes))
    require_memory(bounds(128)[1])


def test_a_memory_limit_that_is_too_small_for_each_worker_is_an_error() -> None:
    settings = Settings()
    with pytest.raises(UnreadyError, match="each of 4 workers gets 100,663,296 of") as refused:
        check_shares(settings, 4, (75 + 4 * 96) * MIB)
    with pytest.raises(ConfigError, match=r"^for each of 4 workers: flow\.memory_max_bytes: "):
        check_shares(settings, 4, 400 * MIB)
    raised_bytes = int(
        str(refused.value).split("Raise it to ")[1].split(", or")[0].replace(",", "")
    )
    check_shares(settings, 4, raised_bytes)


def test_more_memory_than_the_machine_has_is_said() -> None:
    has_bytes = available_bytes()
    assert missing_memory(None) == missing_memory(has_bytes) == []
    (said,) = missing_memory(has_bytes + 1)
    assert f"allows {has_bytes + 1:,} bytes, but" in said
    assert f"at {has_bytes:,}, all that" in said


def test_the_limit_of_a_systemd_unit_is_the_memory_that_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unit = tmp_path / "system.slice" / "flowguard.service"
    unit.mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/\n0::/system.slice/flowguard.service\n")
    (unit.parent / "memory.max").write_text(f"{300 * MIB}\n")
    (unit / "memory.max").write_text("max\n")
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(memory, "CGROUP_OF_PROCESS", tmp_path / "own")
    assert available_bytes() == 300 * MIB
    (unit / "memory.max").write_text(f"{200 * MIB}\n")
    assert available_bytes() == 200 * MIB


@pytest.mark.parametrize("has_own_view", [False, True], ids=["host", "container"])
def test_limits_of_control_groups_of_version_1_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_own_view: bool
) -> None:
    """A container may see its own group as the root, but the name that the host has for it."""
    group = tmp_path / "memory" if has_own_view else tmp_path / "memory" / "docker" / "1"
    group.mkdir(parents=True)
    (tmp_path / "own").write_text("5:cpu,cpuacct:/\n4:hugetlb,memory:/docker/1\n0::/\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.limit_in_bytes").write_text(f"{200 * MIB}\n")
    monkeypatch.setattr(memory, "CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(memory, "CGROUP_OF_PROCESS", tmp_path / "own")
    assert available_bytes() == 200 * MIB
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{100 * MIB}\n")
    assert available_bytes() == 100 * MIB


@pytest.mark.parametrize("process_mib", [120, 300, 900])
def test_a_larger_process_needs_a_larger_limit(process_mib: int) -> None:
    asked, small = bounds(128)
    require_memory(small)
    with pytest.raises(
        UnreadyError, match=f"takes {process_mib * MIB + small.store_bytes:,} with"
    ) as refused:
        require_memory(small, process_mib * MIB)
    raised_bytes = int(str(refused.value).rpartition(" ")[2].replace(",", ""))
    require_memory(Bounds.of(asked, raised_bytes), process_mib * MIB)


@pytest.mark.slow
def test_memory_of_what_a_recording_imports_counts(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    config = tmp_path / "flowguard.toml"
    config.write_text(
        f"[flow]\nmemory_max_bytes = {128 * MIB}\n[store]\nkind = 'memory'\n"
        "[network]\nlisteners = ['127.0.0.1:0']\n"
    )
    environment = environment_with({"FLOWGUARD_TELEMETRY__RECORD_DIR": str(tmp_path / "runs")})
    for words, variables, code in (
        (("check", str(config)), environment_with(None), 0),
        (("check", str(config)), environment, 2),
        (("serve", "--config", str(config), "--http", "none"), environment, 2),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flowguard", *words],
            env=variables,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("reject all clients as overloaded" in done.stderr) == (code == 2)


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
        "[flow]\nmemory_max_bytes = 1_000_000_000_000_000\n[network]\n"
        f'listeners = ["mqtts://127.0.0.1:0"]\ncert = "{old.cert}"\nkey = "{old.key}"\n'
    )
    code, said = flowguard("check", str(config))
    assert code == 2
    assert f"{config} is good, but this machine is not ready for it" in said
    assert "flow.memory_max_bytes allows 1,000,000,000,000,000 bytes, but" in said
    assert "expired on" in said
    with running_broker(tmp_path / "b", "--config", str(config), listen=False) as broker:
        logged = re.sub(r"\x1b\[[0-9;]*m", "", broker.log.read_text())
        assert logged.count("capacity lacking") == 1
        assert logged.count("certificate expired") == 1
        broker.process.send_signal(signal.SIGHUP)
        while broker.log.read_text().count("certificate expired") < 2:
            assert broker.process.poll() is None
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_check_and_serve_refuse_a_limit_below_the_process_itself(
    tmp_path: Path, workers: int
) -> None:
    limit_bytes = (96 * workers + 75 * (workers > 1)) * MIB
    config = tmp_path / "flowguard.toml"
    config.write_text(
        f"[flow]\nmemory_max_bytes = {limit_bytes}\n[node]\nworkers = {workers}\n"
        '[network]\nlisteners = ["127.0.0.1:0"]\n'
    )
    data = tmp_path / "data"
    for command in (
        ("check", str(config)),
        ("serve", "--config", str(config), "--data", str(data)),
    ):
        code, said = run_in(tmp_path, *command)  # A fork takes less.
        assert code == 2
        assert f"{limit_bytes:,} bytes" in said
        assert "it would reject all clients as overloaded. Raise it to" in said
    assert not data.exists()


@pytest.mark.slow
def test_check_compares_the_part_of_each_worker_with_the_descriptors_of_a_process(
    tmp_path: Path,
) -> None:
    count = 2 * resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    config = tmp_path / "flowguard.toml"
    config.write_text(
        f"[node]\nworkers = 2\nconnections_max = {count}\n"
        f"[flow]\nmemory_max_bytes = {available_bytes()}\n"
    )
    code, said = flowguard("check", str(config))
    assert code == 2
    assert f"each of 2 workers: node.connections_max allows {count // 2:,} clients, but" in said
