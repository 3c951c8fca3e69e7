"""Recording: a broker's /metrics over time, and the alerts that promtool finds in it."""

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.deploy.test_prometheus import NAME, RULES, program
from tests.interop.broker import PATIENCE_S

SAMPLE = re.compile(r"(\w+(?:\{[^}]*\})?) (\S+)")


class Recording:
    """Samples of the series that rules name, as promtool reads them."""

    def __init__(self, address: str, *rules: Path) -> None:
        """`rules`: files of rules, or none for those of a broker."""
        self._address = address
        self._rules = rules or (RULES,)
        texts = "".join(file.read_text() for file in self._rules)
        self._named = set(NAME.findall(texts))
        self._samples: list[dict[str, str]] = []
        self._began_s = time.time()

    def take(self) -> dict[str, float]:
        """Record /metrics once; return the sample."""
        found = self._read()
        self._samples.append(found)
        return {name: float(value) for name, value in found.items()}

    def now(self) -> dict[str, float]:
        """Return a sample without recording it."""
        return {name: float(value) for name, value in self._read().items()}

    def _read(self) -> dict[str, str]:
        try:
            with urllib.request.urlopen(
                f"http://{self._address}/metrics", timeout=PATIENCE_S
            ) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            text = ""
        found = {
            name: value
            for name, value in SAMPLE.findall(text)
            if name.partition("{")[0] in self._named
        }
        for name in found:
            if name.startswith("flowguard_certificate_expiry"):  # promtool begins at time 0.
                found[name] = str(float(found[name]) - self._began_s)
        found["up"] = str(int(bool(text)))  # Prometheus itself records this.
        return found

    def until(self, condition: Callable[[dict[str, float]], bool]) -> None:
        """Record once per second until a sample meets the condition."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition(self.take()):
            assert time.monotonic() < deadline_s
            time.sleep(1.0)

    def firing(self, folder: Path, interval: str) -> set[str]:
        """Return the alerts that fire at the end, if a sample stands for `interval`."""
        names = {name for sample in self._samples for name in sample}
        series = [
            f"      - series: '{_with_instance(name)}'\n"
            f"        values: '{' '.join(sample.get(name, '_') for sample in self._samples)}'\n"
            for name in sorted(names)
        ]
        end = f"{(len(self._samples) - 1) * int(interval[:-1])}{interval[-1]}"
        file = folder / "fault.test.yml"
        file.write_text(
            f"rule_files: {list(map(str, self._rules))}\n"
            f"evaluation_interval: {interval}\ntests:\n"
            f"  - interval: {interval}\n    input_series:\n{''.join(series)}"
            "    promql_expr_test:\n"
            '      - expr: count by (alertname) (ALERTS{alertstate="firing"})\n'
            f"        eval_time: {end}\n"
            "        exp_samples: [{labels: '{never=\"1\"}', value: 1}]\n"
        )
        done = subprocess.run(
            [program("promtool"), "test", "rules", str(file)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "exp:" in done.stderr + done.stdout, done.stderr + done.stdout
        got = (done.stderr + done.stdout).partition("got:")[2]
        return set(re.findall(r'alertname="(\w+)"', got))


def _with_instance(name: str) -> str:
    metric, _, labels = name.partition("{")
    return f'{metric}{{instance="a",job="flowguard",{labels.removesuffix("}")}}}'.replace(",}", "}")
