"""Plugins for an amqtt under test: nothing is worked on while a file is there."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin


class Hold(BaseTopicPlugin):
    """Where messages wait for a slow host."""

    @dataclass
    class Config:
        path: str = ""

    async def topic_filtering(self, **what: Any) -> bool:
        while Path(self.config.path).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        return True


class HoldConnects(BaseAuthPlugin):
    """Where CONNECTs wait for a slow host."""

    @dataclass
    class Config:
        path: str = ""

    async def authenticate(self, **what: Any) -> bool:
        while Path(self.config.path).exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        return True
