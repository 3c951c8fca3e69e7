from tests.flowguard.conftest import no_connection_outlives_its_test, no_topic_is_known
from tests.flowguard.stores.rocks.conftest import open_store, store

__all__ = ["no_connection_outlives_its_test", "no_topic_is_known", "open_store", "store"]
