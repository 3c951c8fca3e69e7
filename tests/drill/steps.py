"""The steps of the drill on a broker with a fleet: clients, rules, certificate, restart, backup."""

import json
import subprocess
from contextlib import ExitStack

from tests.drill.devices import Device, Fleet, leave_subscription
from tests.drill.scene import CERTIFICATE, LOG, QUEUE_MAX, SERIAL, SERVE, USERS, Scene
from tests.support.patience import HANG_S

FLAPPER, DEVICE, NEW_DEVICE, ARCHIVE = "van-17", "press-7", "press-8", "archive"
DENIED = f"plant/{NEW_DEVICE}/temperature"


class BrokerDrill:
    def __init__(self, scene: Scene, clients: int, drain: str) -> None:
        """`drain`: the time in which the broker disconnects its clients."""
        self._scene = scene
        self._terminal = scene.terminal
        self._clients = clients
        self._drain = drain
        self._context = ExitStack()

    def run(self) -> None:
        scene, port = self._scene, self._scene.mqtt_port
        with Fleet(port, self._clients, scene.ca, USERS["meter"]):
            with scene.broker(), self._device():
                self._wait_for_fleet()
                leave_subscription(port, scene.context(), ARCHIVE, USERS[ARCHIVE], "devices/#")
                self._look()
                self._find_flapping_client()
                self._find_denied_topic()
                self._find_full_queue()
                self._renew_certificate()
                self._back_up()
                self._drain_slowly()
            with scene.broker() as process:
                self._come_back()
                self._lose_a_session()
                self._restore(process)
            with scene.broker():
                self._find_restored_session()

    def _device(self) -> Device:
        scene = self._scene
        return Device(
            scene.mqtt_port, scene.context(), DEVICE, USERS[DEVICE], topic=f"devices/{DEVICE}/state"
        )

    def _wait_for_fleet(self) -> None:
        count = f"flowguard clients list 'meter-*' --state connected --limit {10 * self._clients}"
        self._terminal.wait_for(f"{count} --json | wc -l", f"{self._clients}\n")

    def _look(self) -> None:
        terminal = self._terminal
        terminal.step("Look", "`top` begins with the state of the broker in one sentence.")
        said = terminal.run("flowguard top --once")
        assert f"{self._clients + 1:,} connected" in said

    # --- a client that connects again and again --------------------------------------------

    def _find_flapping_client(self) -> None:
        scene, terminal = self._scene, self._terminal
        terminal.step(
            f"Find a flapping client among {self._clients:,}",
            f"Two vans have the same client id, `{FLAPPER}`. Each ends the connection of the other "
            "one, and reconnects. One command names this client.",
        )
        assert "No client flaps" in terminal.run("flowguard clients flapping"), "the control"
        with ExitStack() as vans:
            for source in ("127.0.0.2", "127.0.0.3"):
                of_user = (FLAPPER, USERS["courier"])
                van = Device(scene.mqtt_port, scene.context(), *of_user, every_s=0.5, source=source)
                vans.enter_context(van)
            found = terminal.until("flowguard clients flapping", FLAPPER)
            assert "session_taken_over" in found
            assert "meter-" not in found
            said = terminal.run(f"flowguard explain {FLAPPER} | head -12")
            assert "session_taken_over" in said
            assert "127.0.0.2" in said
            assert "127.0.0.3" in said
            self._kick()

    def _kick(self) -> None:
        terminal = self._terminal
        terminal.step(
            "Lock it out",
            "Without its user the client cannot reconnect. `reload` reads the users again, "
            "and `kick` ends the open connection.",
        )
        terminal.run("flowguard passwd del courier --file users")
        terminal.run("flowguard reload")
        terminal.until(f"flowguard clients kick {FLAPPER}", "")
        terminal.until(f"grep 'authentication failed' {LOG} | tail -1", FLAPPER)
        rows = terminal.until(f"flowguard clients list '{FLAPPER}'", "client")
        assert "connected" not in rows

    # --- messages that are dropped ---------------------------------------------------------

    def _find_denied_topic(self) -> None:
        scene, terminal = self._scene, self._terminal
        terminal.step(
            "Learn why the messages of a device are dropped",
            f"The new device `{NEW_DEVICE}` is connected as `{DEVICE}` is, but no message of it "
            "arrives. `explain` shows the difference.",
        )
        assert "Rejected" not in terminal.run(f"flowguard explain {DEVICE} | head -8"), (
            "the control"
        )
        of_user = (NEW_DEVICE, USERS[NEW_DEVICE])
        with Device(scene.mqtt_port, scene.context(), *of_user, topic=DENIED):
            said = terminal.until(
                f"flowguard explain {NEW_DEVICE} | head -8", "Rejected and dropped"
            )
            assert f"{DENIED} (not_authorized)" in said
            terminal.run(f"grep 'publish rejected' {LOG} | tail -1")
            self._change_rule()

    def _change_rule(self) -> None:
        terminal = self._terminal
        terminal.step(
            "Change a rule, and test it",
            "`acl test --config` asks the changed files before the broker reads them. After "
            "`reload` the same question goes to the broker.",
        )
        test = f"flowguard acl test publish {DENIED} --client {NEW_DEVICE}"
        assert "denied" in terminal.run(test, code=1)
        edit = r"""sed -i 's|"devices/%u/#"|"devices/%u/#", "plant/%u/#"|' rules.toml"""
        terminal.run(edit)
        terminal.run("flowguard check flowguard.toml")
        assert "allowed" in terminal.run(f"{test} --user {NEW_DEVICE} --config flowguard.toml")
        terminal.run("flowguard reload")
        assert "allowed" in terminal.run(test)
        before = self._rejected()
        terminal.quiet("sleep 1")
        assert self._rejected() == before, "the device still publishes to the topic"

    def _rejected(self) -> int:
        answer = json.loads(self._terminal.quiet(f"flowguard explain {NEW_DEVICE} --json"))
        return int(answer["rejected"]["messages"])

    def _find_full_queue(self) -> None:
        terminal = self._terminal
        terminal.step(
            "Learn why a subscriber lost messages",
            f"The subscriber `{ARCHIVE}` is absent. The broker drops further "
            "messages, because its queue is full.",
        )
        full = f"{QUEUE_MAX} messages wait for it"
        said = terminal.until(f"flowguard explain {ARCHIVE} | head -6", full)
        assert "its queue has its maximum of messages" in said
        terminal.run(
            "curl -s 127.0.0.1:9883/metrics | grep 'messages_dropped_total.*queue_messages'"
        )

    # --- certificate -----------------------------------------------------------------------

    def _renew_certificate(self) -> None:
        terminal = self._terminal
        terminal.step(
            "Renew a certificate",
            "The alert `FlowguardCertificateExpires` has begun: ten days are left. Connections "
            "stay; new ones get the new certificate.",
        )
        days = "flowguard_certificate_expiry_seconds"
        terminal.run(f"curl -s 127.0.0.1:9883/metrics | grep '^{days}'")
        before = terminal.run(SERIAL)
        terminal.run(CERTIFICATE.format(days=365))
        assert terminal.quiet(SERIAL) == before, "the broker has not read the new files yet"
        terminal.run("flowguard reload")
        assert terminal.run(SERIAL) != before
        left = terminal.run(
            f"curl -s 127.0.0.1:9883/metrics | grep '^{days}' |\n"
            """    awk '{printf "%.0f days left\\n", ($2 - systime()) / 86400}'"""
        )
        assert left == "365 days left\n"

    # --- end, restart, backup --------------------------------------------------------------

    def _back_up(self) -> None:
        terminal = self._terminal
        terminal.step("Back up", "The running broker makes a consistent copy. Check it at once.")
        terminal.run("flowguard store backup copy-of-today")
        terminal.run("flowguard store verify copy-of-today")
        terminal.run("flowguard store info copy-of-today")

    def _drain_slowly(self) -> None:
        terminal = self._terminal
        terminal.step(
            "Drain",
            "The broker disconnects its clients one after the other, and then ends. Load "
            "balancers see it in `/ready` from the beginning.",
        )
        assert terminal.run("curl -s 127.0.0.1:9883/ready") == "ready\n"
        drain = f"flowguard drain --over {self._drain}"
        with terminal.background(drain) as draining:
            terminal.until("curl -s 127.0.0.1:9883/ready", "not ready: ")
            said, _ = draining.communicate(timeout=HANG_S)
        assert "the broker has ended" in said
        terminal.note(drain, said)

    def _come_back(self) -> None:
        terminal = self._terminal
        terminal.step("Start again", "All clients reconnect; no stored session is lost.")
        terminal.note(f"{SERVE} 2>>{LOG} &", "")
        self._wait_for_fleet()
        terminal.run(f"grep ' started ' {LOG} | tail -1")
        terminal.until("flowguard top --once | head -2", f"calm: {self._clients:,} clients")
        assert f"{QUEUE_MAX} messages" in terminal.run(f"flowguard explain {ARCHIVE} | head -2")

    def _lose_a_session(self) -> None:
        terminal = self._terminal
        terminal.step(
            "Lose something",
            "By mistake, a session is deleted with the messages that wait in it. The log "
            "names the address of the caller.",
        )
        terminal.run(f"flowguard clients forget {ARCHIVE}")
        terminal.run(f"grep audit {LOG} | tail -1")
        assert "no session" in terminal.run(f"flowguard explain {ARCHIVE}", code=1)

    def _restore(self, process: "subprocess.Popen[bytes]") -> None:
        terminal = self._terminal
        terminal.step(
            "Restore the backup", "Stop the broker, put the copy in its place, and start again."
        )
        terminal.run(f"kill {process.pid}")
        process.wait(HANG_S)
        terminal.run("mv flowguard-data damaged && mv copy-of-today flowguard-data")
        terminal.note(f"{SERVE} 2>>{LOG} &", "")

    def _find_restored_session(self) -> None:
        said = self._terminal.run(f"flowguard explain {ARCHIVE} | head -2")
        assert f"{QUEUE_MAX} messages wait for it" in said
