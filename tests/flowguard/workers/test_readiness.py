"""Whether load balancers should send clients to a node with several workers."""

import pytest

from flowguard.app.workers.process import Worker
from flowguard.app.workers.readiness import ready_response
from flowguard.ops.web.http_connection import Response, text_response

READY = text_response("ready")
STORE_AWAY = text_response("not ready: Redis is away", 503)


def worker(index: int, *, is_wanted: bool = True, is_ready: bool = True) -> Worker:
    found = Worker(index)
    found.is_wanted, found.is_ready = is_wanted, is_ready
    return found


SERVES, STARTS = worker(0), worker(1, is_ready=False)
GIVEN_AWAY = worker(2, is_wanted=False)


@pytest.mark.parametrize(
    ("workers", "answers", "of_machine", "of_cluster"),
    [
        ([SERVES], [READY], 200, 200),
        ([SERVES, STARTS], [READY, None], 503, 200),
        ([STARTS], [None], 503, 503),
        ([SERVES], [STORE_AWAY], 503, 503),
        ([SERVES, SERVES], [READY, STORE_AWAY], 503, 200),
        ([GIVEN_AWAY], [READY], 503, 503),
        ([SERVES, GIVEN_AWAY], [READY, STORE_AWAY], 200, 200),
    ],
)
def test_one_shard_that_takes_clients_is_enough_in_a_cluster_only(
    workers: list[Worker], answers: list[Response | None], of_machine: int, of_cluster: int
) -> None:
    codes = [
        ready_response(workers, answers, in_cluster=each, draining=False).code
        for each in (False, True)
    ]
    assert codes == [of_machine, of_cluster]


def test_draining_node_is_not_ready_while_its_shards_still_serve() -> None:
    response = ready_response([SERVES], [READY], in_cluster=True, draining=True)
    assert response.code == 503
    assert response.body == b"1 of 1 workers serve; draining\n"


def test_reasons_name_the_worker() -> None:
    response = ready_response([SERVES], [STORE_AWAY], in_cluster=False, draining=False)
    assert response.body == b"1 of 1 workers serve; worker-0 is not ready: Redis is away\n"
