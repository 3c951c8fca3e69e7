"""Due calls are made, however late the loop is."""

from loadgen.storm.loop import ClientLoop
from tests.loadgen.storm.servers import target


async def test_what_is_due_when_time_is_over_is_done_once() -> None:
    """As on a machine that is busy with other work during the whole run."""
    loop = ClientLoop(target(("127.0.0.1", 1)), clock=lambda: 10.0)
    called_at: list[float] = []
    loop.call_at(1.0, called_at.append)
    await loop.run(lambda now_s: now_s >= 2.0)
    await loop.run(lambda now_s: now_s >= 2.0)
    loop.close_all()
    assert called_at == [10.0]
