"""Readiness: whether load balancers should send clients to several workers."""

from collections.abc import Sequence

from flowguard.app.workers.process import Worker, sentence_of
from flowguard.ops.web.http_connection import Response, text_response


def ready_response(
    workers: Sequence[Worker],
    answers: Sequence[Response | None],
    *,
    in_cluster: bool,
    draining: bool,
    trouble: str = "",
) -> Response:
    """Return 200 if clients may come, else 503, with the state of all workers in words.

    `trouble`: why the table of the cluster cannot be read, or "".
    `answers` has that of each worker to the same question, or None. A node of a cluster passes
    clients on to other nodes, so one shard that serves is enough. If it had to be all of them, no
    node would be ready while the shards of a dead one start at all others.
    """
    takes = [
        worker.serves and (answer is None or answer.code == 200)
        for worker, answer in zip(workers, answers, strict=True)
        if worker.is_wanted
    ]
    reasons = "; draining" if draining else ""
    for worker, answer in zip(workers, answers, strict=True):
        if answer is not None and answer.code != 200:
            reasons += f"; {worker.name} is {answer.body.decode().strip()}"
    if trouble and not takes:
        reasons += f"; {trouble}"
    enough = any(takes) if in_cluster else bool(takes) and all(takes)
    return text_response(sentence_of(workers) + reasons, 200 if enough and not draining else 503)
