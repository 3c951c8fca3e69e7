from flowguard.app.embedded import open_broker as open_broker
from flowguard.app.in_thread import run_broker as run_broker

__version__: str
