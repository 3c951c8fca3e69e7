"""Plugins for an amqtt under test: nothing is worked on while a file is there."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amqtt.contexts import Action
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


class HoldDeliveries(BaseTopicPlugin):
    """Where messages on their way to subscribers wait for a slow host; a file beside it has a byte
    for each that was published."""

    @dataclass
    class Config:
        path: str = ""

    async def topic_filtering(self, *, action: Action, **what: Any) -> bool:
        if action is Action.PUBLISH:
            with Path(f"{self.config.path}-published").open("ab") as file:  # noqa: ASYNC230
                file.write(b".")
        while action is Action.RECEIVE and Path(self.config.path).exists():  # noqa: ASYNC110, ASYNC240
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
