"""The scene of the drill: a broker with TLS, users, rules and HTTP, as its operator made it."""

import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import free_port
from loadgen.storm.access import User
from tests.drill.terminal import Terminal
from tests.support.patience import HANG_S

USERS = {
    name: User(name, f"word of {name}")
    for name in ("meter", "press-7", "press-8", "courier", "archive")
}
QUEUE_MAX = 50
CONFIG = f"""\
[network]
listeners = ["mqtts://127.0.0.1:8883"]
cert = "server.pem"
key = "server.key"
password_file = "users"
acl_file = "rules.toml"

[session]
queue_messages_max = {QUEUE_MAX}

[log]
clients = "info"
"""
RULES = """\
[roles.device]
users = ["*"]
publish = ["devices/%u/#"]

[roles.archive]
users = ["archive"]
receive = ["devices/#"]
"""
AUTHORITY = """\
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=Fleet CA" -out ca.pem
"""
CERTIFICATE = """\
openssl ecparam -name prime256v1 -genkey -noout -out server.key
openssl req -new -key server.key -subj /CN=localhost \\
    -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -out server.csr
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial \\
    -days {days} -copy_extensions copy -out server.pem"""
SERIAL = (
    "openssl s_client -connect 127.0.0.1:8883 -CAfile ca.pem </dev/null 2>/dev/null |\n"
    "    openssl x509 -noout -serial -enddate"
)
PROGRAMS = ("curl", "openssl", "redis-server", "prometheus", "promtool", "mosquitto")
"""Programs that the drill needs beside flowguard."""
SERVE = "flowguard serve --config flowguard.toml --http 127.0.0.1:9883"
LOG = "broker.log"


class Scene:
    """`mqtt_port` and `http_port` are free ports in place of 8883 and 9883."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.folder = terminal.folder
        self.mqtt_port, self.http_port = free_port(), free_port()
        terminal.ports |= {8883: self.mqtt_port, 9883: self.http_port}
        terminal.environment["FLOWGUARD_URL"] = f"http://127.0.0.1:{self.http_port}"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def prepare(self) -> None:
        """Write all files of the operator; the certificate has ten days left."""
        terminal, folder = self.terminal, self.folder
        (folder / "flowguard.toml").write_text(terminal.real(CONFIG))
        (folder / "rules.toml").write_text(RULES)
        terminal.quiet(AUTHORITY + CERTIFICATE.format(days=10))
        for user in USERS.values():
            words = f"{user.password}\\n{user.password}\\n"
            terminal.quiet(f"printf '{words}' | flowguard passwd add {user.name} --file users")

    @contextmanager
    def broker(
        self, command: str = SERVE, log_name: str = LOG
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Start a broker; it must end by itself or by SIGTERM, without an error."""
        with (self.folder / log_name).open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self.terminal.real(command)}"],
                cwd=self.folder,
                env=self.terminal.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            self.terminal.wait_for("curl -sf 127.0.0.1:9883/ready", "ready")
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0, (self.folder / log_name).read_text()
        finally:
            process.kill()
            process.wait()

    def context(self) -> ssl.SSLContext:
        """Return the context of a client that trusts the authority."""
        return ssl.create_default_context(cafile=str(self.ca))

    def missing(self) -> list[str]:
        """Return the programs of the drill that this machine lacks."""
        path = self.terminal.environment["PATH"]
        return [name for name in PROGRAMS if shutil.which(name, path=path) is None]
