"""Reading: read pages of queued messages from a blocking store, in a thread."""

from typing import Final

import structlog

from flowguard.errors import NotNowError
from flowguard.records import QueueEntry, owner_name
from flowguard.session.outbound.fetch import Fetch
from flowguard.stores import Store

RETRY_S: Final = 0.05
"""Pause before a rejected batch is tried again, seconds; the store has changed nothing."""

log = structlog.get_logger()


def read_page(fetch: Fetch, store: Store) -> list[QueueEntry] | None:
    """Return a page, or None if it cannot be read now. A damaged queue does not affect others."""
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
