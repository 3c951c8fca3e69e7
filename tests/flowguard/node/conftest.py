import pytest

from flowguard.types import MQTT_5, MQTT_311


@pytest.fixture(params=[MQTT_311, MQTT_5], ids=["3.1.1", "5.0"])
def version(request: pytest.FixtureRequest) -> int:
    """The test holds for both versions of the standard."""
    return int(request.param)
