"""`flowguard store info` and `verify` for scripts: JSON on standard output, the same exit codes."""

import json
from pathlib import Path

from flowguard.records import Append, PutSession
from tests.flowguard.stores.redis.benches import new_prefix, shared_server
from tests.flowguard.stores.redis.benches import open_store as open_redis
from tests.flowguard.stores.test_contract import delivery as redis_delivery
from tests.store_tools.test_store import damage, delivery, open_store, run_here


def test_store_info_and_verify_print_json(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = open_store(folder)
    appends = [Append("big", pos, delivery(b"x" * 1_000)) for pos in (1, 2)]
    store.commit([PutSession("big", 0xFFFF_FFFF, None), PutSession("idle", 60, None), *appends])
    store.close()
    code, printed, _ = run_here("store", "info", str(folder), "--json")
    found = json.loads(printed)
    assert (code, found["sessions"], found["messages"], found["retained"]) == (0, 2, 2, 0)
    assert (found["is_clean"], found["directory"]) == (True, str(folder))
    (largest,) = found["largest"]
    assert (largest["name"], largest["messages"], largest["state"]) == ("big", 2, "does not end")
    code, printed, _ = run_here("store", "verify", str(folder), "--json")
    found = json.loads(printed)
    assert (code, found["sessions"], found["entries"], found["problems"]) == (0, 2, 2, [])
    damage(folder)
    code, printed, complaint = run_here("store", "verify", str(folder), "--json")
    assert (code, json.loads(printed)["problems_count"]) == (1, 1)
    assert complaint == f"flowguard store verify: {folder} is damaged: 1 problem\n"


def test_store_on_redis_prints_json() -> None:
    prefix = new_prefix()
    store = open_redis(shared_server(), prefix, name="the broker")
    store.commit([PutSession("c", 3_600, None), Append("c", 1, redis_delivery(b"x" * 300))])
    store.close()
    place = ("--redis-url", shared_server().unix_url, "--redis-prefix", prefix, "--json")
    found = json.loads(run_here("store", "info", *place)[1])
    assert (found["layout"], found["sessions"], found["messages"]) == ("stream", 1, 1)
    assert found["largest"][0]["name"] == "c"
    code, printed, _ = run_here("store", "verify", *place)
    found = json.loads(printed)
    assert (code, found["entries"], found["problems"]) == (0, 1, [])
