"""The servers: flowguard, its peers, and the sink that shows what the generator can do."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from flowguard import __version__

from . import machine
from .brokers import CERT, HOST, KEY, TLS, USERS, WS, Broker, free_port
from .build import Unavailable, build, work_folder

COMPILED = Path(__file__).resolve().parents[1] / ".compiled"
AMQTT_VERSION = "0.12.1"
LIMIT_S = 300
USERS_COUNT, PASSWORD = 10_000, b"secret"


def user_name(number: int) -> str:
    """Of a client that says a password (tls_crowd.c)."""
    return f"u{number:05}"


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return done.stdout.strip()


class Flowguard(Broker):
    name = "flowguard"
    reports_port = True
    remark = (
        "its default store, RocksDB, each batch synced before its acknowledgements, in every row "
        "but those in memory (`--store memory`)"
    )

    def prepare(self) -> str:
        commit = machine.commit()
        return __version__ + (f" ({commit})" if commit else "")

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        spoken = set(scenario.split("-"))
        scheme = ("ws" if WS in spoken else "mqtt") + ("s" if TLS in spoken else "")
        words = ["--listen", f"{scheme}://{HOST}:{port}", "--data", str(folder / "data")]
        if TLS in spoken:
            words += ["--cert", CERT, "--key", KEY]
        if USERS in spoken:
            from flowguard.identity.passwords import PasswordFile  # needs an extra package

            # The same hash for all, else making the file would take longer than the storm.
            users = PasswordFile({}).with_user(user_name(0), PASSWORD)
            (hashed,) = users.hashes.values()
            lines = (f"{user_name(number)}:{hashed}\n" for number in range(USERS_COUNT))
            (folder / "users").write_text("".join(lines))
            words += ["--password-file", "users", "--allow-all-topics"]
        if scenario.startswith("memory"):
            words += ["--store", "memory"]
        return [sys.executable, "-m", "flowguard", "serve", *words]


class FlowguardCompiled(Flowguard):
    name = "flowguard-compiled"
    remark = "the same sources, the sans-IO rooms compiled with mypyc (`make compile`)"

    def prepare(self) -> str:
        if not (COMPILED / "flowguard").is_dir():
            raise Unavailable("the hot rooms are not compiled: make compile")
        return super().prepare()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        return ["env", f"PYTHONPATH={COMPILED}", *super().command(port, folder, scenario)]


BUILT: Flowguard = FlowguardCompiled() if COMPILED.is_dir() else Flowguard()
"""The compiled build if there is one."""


class Mosquitto(Broker):
    name = "mosquitto"
    remark = (
        "logs only warnings and errors; in fan-in `max_queued_messages 0`, because 2.0.11 drops "
        "QoS 1 messages there with the default of 1000, even when fewer than 20 are on their way; "
        "in storms by TLS `set_tcp_nodelay true`, without which those who are in wait 40 ms; "
        "in durable rows `persistence true`: it writes all it has every 30 minutes and at its end, "
        "and syncs nothing before it acknowledges"
    )

    def prepare(self) -> str:
        shown = subprocess.run([self._program(), "-h"], capture_output=True, text=True, check=False)
        first = shown.stdout.partition("\n")[0]
        return first.removeprefix("mosquitto version ").strip()

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        spoken = scenario.split("-")
        lines = [
            f"listener {port} {HOST}",
            *(["protocol websockets", f"listener {free_port()} {HOST}"] if WS in spoken else []),
            *([f"certfile {folder / CERT}", f"keyfile {folder / KEY}"] if TLS in spoken else []),
            "allow_anonymous true",
            "log_type error",
            "log_type warning",
        ]
        if "storm-tls" in scenario:
            lines.append("set_tcp_nodelay true")
        if scenario.startswith("fanin"):
            lines.append("max_queued_messages 0")
        if scenario.startswith("durable"):
            data = folder / "data"
            data.mkdir()
            data.chmod(0o777)  # it drops its privileges
            lines += ["persistence true", f"persistence_location {data}/"]
        config = folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        return [self._program(), "-c", str(config)]

    def _program(self) -> str:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
        program = shutil.which("mosquitto", path=path)
        if program is None:
            raise Unavailable("mosquitto is not installed; Debian: apt-get install mosquitto")
        return program


class Amqtt(Broker):
    name = "amqtt"
    remark = "anonymous access; no logging plugins and no `$SYS`; n = 1 where a run is very long"

    def prepare(self) -> str:
        program = self._program()
        if not program.exists():
            folder = work_folder() / "amqtt"
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            try:
                _output(sys.executable, "-m", "venv", "--clear", str(folder))
                _output(*pip, f"amqtt=={AMQTT_VERSION}")
            except subprocess.CalledProcessError as error:
                said = (error.stderr or error.stdout).strip() or "no reason given"
                why = said.splitlines()[-1]
                raise Unavailable(f"amqtt could not be installed: {why}") from error
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"amqtt: no end after {LIMIT_S} s of installing") from error
        return _output(str(program), "--version").removeprefix("amqtt").strip() or AMQTT_VERSION

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        config = folder / "amqtt.yaml"
        config.write_text(
            f"listeners:\n  default:\n    type: tcp\n    bind: {HOST}:{port}\n"
            "plugins:\n  amqtt.plugins.authentication.AnonymousAuthPlugin:\n"
            "    allow_anonymous: true\n"
        )
        return [str(self._program()), "-c", str(config)]

    def _program(self) -> Path:
        return work_folder() / "amqtt" / "bin" / "amqtt"


class Sink(Broker):
    name = "sink"
    reports_port = True
    remark = "not a broker: relays and acknowledges at once; shows what the generator can do"

    def prepare(self) -> str:
        build("sink")
        return "C relay"

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        return [str(build("sink"))]


def prepared(names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Versions of the brokers that can run, and why the others cannot."""
    versions, missing = {}, {}
    for name in names:
        try:
            versions[name] = BROKERS[name].prepare()
        except Unavailable as error:
            missing[name] = str(error)
    return versions, missing


BROKERS: dict[str, Broker] = {
    broker.name: broker
    for broker in (Flowguard(), FlowguardCompiled(), Mosquitto(), Amqtt(), Sink())
}
