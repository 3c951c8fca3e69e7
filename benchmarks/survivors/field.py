"""The field: how each broker is started. All bind 127.0.0.1, nobody needs a password."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import HOST, Broker, free_port
from benchmarks.build import Unavailable
from benchmarks.peers import BROKERS

from . import installs

HEAP = "-Xmx768m"
AEDES_JS = """
import { createServer } from 'node:net';
const { Aedes } = await import(process.argv[2] + '/aedes/aedes.js');
const broker = await Aedes.createBroker();
createServer(broker.handle).listen(Number(process.argv[3]), '127.0.0.1', 4096);
"""
HIVEMQ_JAVA = """
import com.hivemq.embedded.*;
import com.hivemq.extension.sdk.api.*;
import com.hivemq.extension.sdk.api.auth.SimpleAuthenticator;
import com.hivemq.extension.sdk.api.parameter.*;
import com.hivemq.extension.sdk.api.services.Services;
import java.nio.file.Path;

public class Survivor {
  public static void main(String[] words) {
    // Without an extension that says otherwise, HiveMQ lets nobody in.
    ExtensionMain everybody = new ExtensionMain() {
      public void extensionStart(ExtensionStartInput in, ExtensionStartOutput out) {
        SimpleAuthenticator yes = (input, output) -> output.authenticateSuccessfully();
        Services.securityRegistry().setAuthenticatorProvider(input -> yes);
      }
      public void extensionStop(ExtensionStopInput in, ExtensionStopOutput out) {}
    };
    EmbeddedExtension extension = EmbeddedExtension.builder().withId("everybody")
      .withName("everybody").withVersion("1").withPriority(0).withStartPriority(1000)
      .withAuthor("survivors").withExtensionMain(everybody).build();
    Path home = Path.of(words[0]);
    EmbeddedHiveMQ.builder().withConfigurationFolder(home.resolve("conf"))
      .withDataFolder(home.resolve("data")).withExtensionsFolder(home.resolve("extensions"))
      .withEmbeddedExtension(extension).build().start().join();
  }
}
"""
RUMQTTD_TOML = """
id = 0
[router]
id = 0
max_connections = 100000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[v4.1]
name = "v4"
listen = "{listen}"
next_connection_delay_ms = 1
[v4.1.connections]
connection_timeout_ms = 60000
max_payload_size = 1048576
max_inflight_count = 1000
dynamic_filters = true
[console]
listen = "127.0.0.1:{console}"
"""
MOQUETTE_CONF = """
host {host}
port {port}
websocket_port disabled
allow_anonymous true
telemetry_enabled false
persistence_enabled false
data_path {data}/
"""
HIVEMQ_XML = """<?xml version="1.0"?>
<hivemq>
  <listeners><tcp-listener><port>{port}</port><bind-address>{host}</bind-address></tcp-listener>
  </listeners>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
</hivemq>
"""


class RabbitMq(Broker):
    name = "rabbitmq"
    remark = "Debian's package with its MQTT plugin; speaks 3.1.1"
    folder = Path("/usr/lib/rabbitmq/bin")

    def prepare(self) -> str:
        installs.program("rabbitmq-server", "rabbitmq-server")
        words = ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"]
        return installs.call(*words).partition("-")[0]

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        (folder / "plugins").write_text("[rabbitmq_mqtt].\n")
        (folder / "rabbitmq.conf").write_text(
            f"mqtt.listeners.tcp.1 = {HOST}:{port}\nmqtt.tcp_listen_options.backlog = 4096\n"
            f"listeners.tcp.1 = {HOST}:{free_port()}\nlog.console.level = error\n"
        )
        names = free_port()
        variables = {
            "HOME": folder,
            "ERL_EPMD_PORT": names,
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RUNNING_UNDER_SYSTEMD": 1,  # The script becomes the broker: signals reach it.
            "RABBITMQ_NODENAME": f"survivor{port}@localhost",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "log-files",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
        }
        words = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *words, str(self.folder / "rabbitmq-server")]

    @contextmanager
    def beside(self, command: list[str]) -> Iterator[None]:
        """The register of Erlang's names, which it would otherwise start and leave behind."""
        port = next(w.partition("=")[2] for w in command if w.startswith("ERL_EPMD_PORT="))
        words = [installs.program("epmd", "erlang-base"), "-port", port, "-address", HOST]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


class Aedes(Broker):
    name = "aedes"
    version = "1.2.0"
    remark = "in memory; speaks 3.1.1"

    def prepare(self) -> str:
        installs.npm("aedes", self.version)
        return self.version

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        script = folder / "aedes.mjs"
        script.write_text(AEDES_JS)
        modules = installs.npm("aedes", self.version)
        return [installs.program("node", "nodejs"), str(script), str(modules), str(port)]


class Mochi(Broker):
    name = "mochi"
    version = "v2.7.9"
    remark = "its own command, in memory"

    def prepare(self) -> str:
        self._program()
        return self.version.removeprefix("v")

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        words = ["-tcp", f"{HOST}:{port}", "-ws", f"{HOST}:{free_port()}"]
        return [str(self._program()), *words, "-info", f"{HOST}:{free_port()}"]

    def _program(self) -> Path:
        return installs.go("mochi", "github.com/mochi-mqtt/server/v2/cmd", self.version)


class Rumqttd(Broker):
    name = "rumqttd"
    version = "0.20.0"
    remark = "its listener for 3.1.1, with inflight 1,000 and payloads up to 1 MiB"

    def prepare(self) -> str:
        installs.cargo("rumqttd", self.version)
        return self.version

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        config = folder / "rumqttd.toml"
        config.write_text(RUMQTTD_TOML.format(listen=f"{HOST}:{port}", console=free_port()))
        return [str(installs.cargo("rumqttd", self.version)), "-c", str(config), "-q"]


class Moquette(Broker):
    name = "moquette"
    version = "0.17"
    remark = f"in memory, {HEAP}"

    def prepare(self) -> str:
        self._class_path()
        return self.version

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        config = folder / "config"
        config.mkdir(exist_ok=True)
        text = MOQUETTE_CONF.format(host=HOST, port=port, data=folder)
        (config / "moquette.conf").write_text(text)
        java = [installs.program("java", "openjdk-17-jre-headless"), HEAP]
        words = [f"-Dmoquette.path={folder}", "-cp", self._class_path()]
        return [*java, *words, "io.moquette.broker.Server"]

    def _class_path(self) -> str:
        return installs.maven("moquette", "io.moquette:moquette-broker", self.version)


class HiveMq(Broker):
    name = "hivemq-ce"
    version = "2025.5"
    remark = f"stores on disk as it comes, {HEAP}"
    artifact = "com.hivemq:hivemq-community-edition-embedded"

    def prepare(self) -> str:
        installs.program("javac", "openjdk-17-jdk-headless")
        self._class_path()
        return self.version

    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        for name in ("conf", "data", "extensions"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "conf" / "config.xml").write_text(HIVEMQ_XML.format(host=HOST, port=port))
        opened = [
            word
            for package in ("java.lang", "java.nio", "sun.nio.ch", "jdk.internal.misc")
            for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
        ]
        java = [installs.program("java", "openjdk-17-jdk-headless"), HEAP, *opened]
        source = folder / "Survivor.java"
        source.write_text(HIVEMQ_JAVA)
        return [*java, "-cp", self._class_path(), str(source), str(folder)]

    def _class_path(self) -> str:
        return installs.maven("hivemq", self.artifact, self.version)


OURS = "flowguard-compiled"
OTHERS = (RabbitMq(), Aedes(), Mochi(), Rumqttd(), Moquette(), HiveMq())
FIELD: dict[str, Broker] = {
    **{name: BROKERS[name] for name in (OURS, "mosquitto", "amqtt")},
    **{broker.name: broker for broker in OTHERS},
}


def version_of(name: str) -> str:
    """The version, installed now unless it is there; raises `Unavailable`."""
    if name not in FIELD:
        raise Unavailable(f"there is no {name}; there are {', '.join(FIELD)}")
    return FIELD[name].prepare()
