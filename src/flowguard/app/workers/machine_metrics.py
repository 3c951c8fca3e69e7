"""`GET /metrics` of several workers: their samples, and those of the supervisor."""

from collections.abc import Mapping, Sequence
from typing import Final

from flowguard.app.workers.process import Worker
from flowguard.ops.web.http_connection import Response

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def metrics_response(
    workers: Sequence[Worker], answers: Sequence[Response | None], of_cluster: bytes
) -> Response:
    """`answers` has the metrics of each worker, or None; `of_cluster` those of the cluster."""
    texts = {
        str(index): answer.body.decode()
        for index, answer in enumerate(answers)
        if answer is not None and answer.code == 200
    }
    ready = "".join(
        f'flowguard_worker_up{{worker="{worker.index}"}} {int(worker.serves)}\n'
        for worker in workers
        if worker.is_wanted
    )
    restarts = "".join(
        f'flowguard_worker_restarts_total{{worker="{worker.index}"}} {worker.restarts_count}\n'
        for worker in workers
    )
    own = (
        "# HELP flowguard_worker_up 1 if the worker serves.\n"
        f"# TYPE flowguard_worker_up gauge\n{ready}"
        "# HELP flowguard_worker_restarts_total Restarts of the worker.\n"
        f"# TYPE flowguard_worker_restarts_total counter\n{restarts}"
    )
    return Response(200, of_cluster + (own + merged(texts)).encode(), CONTENT_TYPE)


def merged(texts: Mapping[str, str]) -> str:
    """Return the metrics of all workers, by worker, with the label `worker` in each sample.

    All samples of a metric follow its description.
    """
    families: dict[str, list[str]] = {}
    for worker, text in texts.items():
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("# HELP "):
                samples = families.setdefault(line, [])
            elif line.startswith("#"):
                if not samples:
                    samples.append(line)
            elif line:
                samples.append(_labelled(line, worker))
    return "".join(f"{line}\n" for head, lines in families.items() for line in (head, *lines))


def _labelled(line: str, worker: str) -> str:
    name, brace, labels = line.partition("{")
    label = f'worker="{worker}"'
    if brace:
        return f"{name}{{{label},{labels}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"
