"""The same work at the proxy, in front of Mosquitto: clients, certificate, upstream, drain."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.brokers import free_port
from tests.drill.devices import Device, Fleet
from tests.drill.scene import CERTIFICATE, SERIAL, USERS, Scene
from tests.support.patience import HANG_S

FLAPPER = "van-17"
MOSQUITTO = """\
user root
listener {port} 127.0.0.1
log_dest none
allow_anonymous false
password_file mosquitto-users
"""
SERVE = (
    "flowguard proxy --listen mqtts://127.0.0.1:8883 --cert server.pem --key server.key "
    "--upstream 127.0.0.1:1884 --http 127.0.0.1:9883"
)
LOG = "proxy.log"


class ProxyDrill:
    def __init__(self, scene: Scene, clients: int, drain: str) -> None:
        self._scene = scene
        self._terminal = scene.terminal
        self._clients = clients
        self._drain = drain

    def run(self) -> None:
        scene, terminal = self._scene, self._terminal
        terminal.ports[1884] = free_port()
        (scene.folder / "mosquitto.conf").write_text(MOSQUITTO.format(port=terminal.ports[1884]))
        users = scene.folder / "mosquitto-users"
        users.write_text("".join(f"{user.name}:{user.password}\n" for user in USERS.values()))
        users.chmod(0o600)
        terminal.quiet("mosquitto_passwd -U mosquitto-users")
        terminal.quiet(CERTIFICATE.format(days=10))
        with Fleet(scene.mqtt_port, self._clients, scene.ca, USERS["meter"]), self._mosquitto():
            with scene.broker(SERVE, LOG) as proxy:
                self._look()
                self._find_flapping_client()
                self._find_rejected_client()
                self._renew_certificate()
                self._drain_slowly()
                proxy.wait(HANG_S)  # A signal would kill it now.
            with scene.broker(SERVE, LOG):
                self._lose_upstream()

    @contextmanager
    def _mosquitto(self) -> Iterator[None]:
        with self._terminal.background("mosquitto -c mosquitto.conf") as process:
            self._mosquitto_process = process
            try:
                yield
            finally:
                process.kill()

    def _look(self) -> None:
        terminal = self._terminal
        terminal.step(
            "The proxy: look",
            "`flowguard proxy`, here in front of Mosquitto, answers the same commands.",
        )
        terminal.until("flowguard top --once | head -2", f"calm: {self._clients:,} clients")
        assert "127.0.0.1:1884" in terminal.run("flowguard explain meter-0003 | head -4")

    def _find_flapping_client(self) -> None:
        scene, terminal = self._scene, self._terminal
        terminal.step(
            "The proxy: find a flapping client",
            "Mosquitto ends the older of two connections with the same client id. The proxy "
            "counts.",
        )
        assert "No client flaps" in terminal.run("flowguard clients flapping"), "the control"
        with ExitStack() as vans:
            for source in ("127.0.0.2", "127.0.0.3"):
                of_user = (FLAPPER, USERS["courier"])
                van = Device(scene.mqtt_port, scene.context(), *of_user, every_s=0.5, source=source)
                vans.enter_context(van)
            assert "meter-" not in terminal.until("flowguard clients flapping", FLAPPER)
            terminal.run(f"flowguard explain {FLAPPER} | head -8")

    def _find_rejected_client(self) -> None:
        scene, terminal = self._scene, self._terminal
        terminal.step(
            "The proxy: learn why a client cannot connect",
            "Mosquitto rejects a wrong password. The proxy logs client, address and reason.",
        )
        wrong = USERS["press-7"]._replace(password="guess")
        with Device(scene.mqtt_port, scene.context(), "press-7", wrong):
            terminal.until(f"grep 'press-7' {LOG} | tail -1", "press-7")

    def _renew_certificate(self) -> None:
        terminal = self._terminal
        terminal.step(
            "The proxy: renew a certificate",
            "The commands are those of the broker. Connections stay.",
        )
        before = terminal.run(SERIAL)
        terminal.quiet(CERTIFICATE.format(days=365))
        assert terminal.quiet(SERIAL) == before, "the proxy has not read the new files yet"
        terminal.run("flowguard reload")
        assert terminal.run(SERIAL) != before

    def _drain_slowly(self) -> None:
        terminal = self._terminal
        terminal.step("The proxy: drain", "Clients leave one after the other, as at the broker.")
        drain = f"flowguard drain --over {self._drain}"
        with terminal.background(drain) as draining:
            terminal.until("curl -s 127.0.0.1:9883/ready", "not ready: ")
            said, _ = draining.communicate(timeout=HANG_S)
        assert "has ended" in said
        terminal.note(drain, said)

    def _lose_upstream(self) -> None:
        terminal = self._terminal
        terminal.step(
            "The proxy: the broker behind is away",
            "Mosquitto has ended. The proxy stays alive, is not ready, and names the cause.",
        )
        terminal.until("flowguard top --once | head -2", f"calm: {self._clients:,} clients")
        process: subprocess.Popen[str] = self._mosquitto_process
        terminal.note(f"kill {process.pid}", "")
        process.terminate()
        process.wait(HANG_S)
        away = "the broker behind has not answered"
        terminal.until("curl -s 127.0.0.1:9883/ready", away)
        terminal.run("curl -s 127.0.0.1:9883/health")
        assert away in terminal.run("flowguard top --once | head -2")
        terminal.run("curl -s 127.0.0.1:9883/metrics | grep '^flowguard_upstream'")
