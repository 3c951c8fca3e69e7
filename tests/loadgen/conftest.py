from tests.flowguard.conftest import no_connection_outlives_its_test, no_topic_is_known

__all__ = ["no_connection_outlives_its_test", "no_topic_is_known"]
