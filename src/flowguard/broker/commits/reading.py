"""Reading: pages of what waits for somebody, from a store that blocks; in a thread."""

from typing import Final

import structlog

from flowguard.errors import NotNowError
from flowguard.records import QueueEntry, owner_name
from flowguard.session.outbound.fetch import Fetch
from flowguard.stores import Store

RETRY_S: Final = 0.05
"""Between two tries of a batch that the store did not take: nothing of it was changed."""

log = structlog.get_logger()


def read_page(fetch: Fetch, store: Store) -> list[QueueEntry] | None:
    """A page; None: not now. What is wrong with one queue concerns no other one."""
    known = fetch.owner.damage
    page: list[QueueEntry] = []
    try:
        page = fetch.entries(store)
    except NotNowError:
        return None
    except Exception as error:
        fetch.damage = f"{error.__class__.__name__}: {error}"
    if fetch.damage and fetch.damage != known:
        log.error("queue cannot be read", owner=owner_name(fetch.client_id), why=fetch.damage)
    return page
