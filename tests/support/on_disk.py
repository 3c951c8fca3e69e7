from flowguard.stores import MemoryStore


class StoreOnDisk(MemoryStore):
    """A store that is on disk as far as a session can see: its pages need not be in memory."""

    on_disk = True
