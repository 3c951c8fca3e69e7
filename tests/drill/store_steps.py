"""The step on Redis: find out from recorded metrics alone that the store was away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import free_port
from tests.drill.devices import Device, leave_subscription
from tests.drill.scene import USERS, Scene
from tests.support.redis_server import ALWAYS, redis_server

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yml"
PROMETHEUS = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: flowguard
    static_configs: [{{targets: ["127.0.0.1:9883"]}}]
"""
SERVE = (
    "flowguard serve --listen 127.0.0.1:1883 --http 127.0.0.1:9883 --store redis "
    "--redis-url redis://127.0.0.1:6379/0"
)
AWAY = "flowguard_store_away_seconds"
QUERY = "promtool query instant http://127.0.0.1:9090"


class StoreDrill:
    def __init__(self, scene: Scene, away_s: float) -> None:
        """`away_s`: time for which Redis does not answer, seconds."""
        self._scene = scene
        self._terminal = scene.terminal
        self._away_s = away_s

    def run(self) -> None:
        scene, terminal = self._scene, self._terminal
        port = free_port()
        terminal.ports |= {1883: port, 9090: free_port()}
        with redis_server(scene.folder / "redis", ALWAYS) as redis:
            terminal.ports[6379] = redis.port
            with scene.broker(SERVE), self._prometheus():
                leave_subscription(port, None, "archive", USERS["archive"], "devices/#")
                device = ("press-7", USERS["press-7"])
                with Device(port, None, *device, topic="devices/press-7/state"):
                    self._look_back("")
                    redis.pause()
                    terminal.quiet(f"sleep {self._away_s}")
                    redis.resume()
                    terminal.wait_for("curl -sf 127.0.0.1:9883/ready", "ready")
                    self._look_back("after")

    @contextmanager
    def _prometheus(self) -> Iterator[None]:
        scene, terminal = self._scene, self._terminal
        text = PROMETHEUS.format(alerts=ALERTS)
        (scene.folder / "prometheus.yml").write_text(terminal.real(text))
        words = "--config.file=prometheus.yml --web.listen-address=127.0.0.1:9090"
        quiet = "--storage.tsdb.path=prometheus --log.level=error"
        with terminal.background(f"prometheus {words} {quiet}") as process:
            terminal.wait_for(f"{QUERY} up", "=> 1")
            yield
            process.terminate()

    def _look_back(self, when: str) -> None:
        """Ask Prometheus before the fault, as a control, and after it."""
        terminal = self._terminal
        longest = f"{QUERY} 'max_over_time({AWAY}[10m]) > 0'"
        if not when:
            assert terminal.quiet(longest).strip() == "", "the control"
            return
        terminal.step(
            "Find out from metrics alone that Redis was away",
            "Publishers of a broker on Redis had to wait during the night. The log is not at "
            "hand, but Prometheus has the metrics. They show that the broker was up, and its store "
            "was not.",
        )
        terminal.wait_for(f"""test -n "$({QUERY} '{AWAY} > 0')" || echo calm""", "calm")
        assert " => " in terminal.run(longest)
        terminal.run(f"{QUERY} 'min_over_time(up[10m])'")
        terminal.run(
            "promtool query range --step=2s http://127.0.0.1:9090 "
            f"'{AWAY}{{job=\"flowguard\"}} > 0' | head -12"
        )
        if self._away_s > 12:
            said = terminal.run(
                f"{QUERY} 'max_over_time(ALERTS{{alertstate=\"firing\"}}[10m])' | cut -d, -f1,3"
            )
            assert "FlowguardStoreAway" in said
