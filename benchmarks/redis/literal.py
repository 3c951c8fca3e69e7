"""TBMQ's persistence in Redis as its authors describe it, written from that description: a sorted
set of references, one string per message with a time to live, the last packet identifier.

What the store on Redis is measured beside; its defects are found by
`tests/benchmarks/test_redis_literal.py`, in it and not in ours.
"""

import json
from typing import Any

LIMIT = 10_000
TTL_S = 604_800

ADD = """
local messages, last_key = KEYS[1], KEYS[2]
local limit, ttl = tonumber(ARGV[1]), ARGV[3]
local added = cjson.decode(ARGV[2])
local last = tonumber(redis.call('GET', last_key) or 0)
local before = last
local highest = redis.call('ZREVRANGE', messages, 0, 0, 'WITHSCORES')
local score = tonumber(highest[2] or last)
for _, message in ipairs(added) do
  last = last % 65535 + 1
  score = score + 1
  message.packetId = last
  local key = messages .. '_' .. last
  redis.call('SET', key, cjson.encode(message), 'EX', message.msgExpiryInterval or ttl)
  redis.call('ZADD', messages, score, key)
end
redis.call('SET', last_key, last)
local over = redis.call('ZCARD', messages) - limit
if over > 0 then
  for _, key in ipairs(redis.call('ZRANGE', messages, 0, over - 1)) do
    redis.call('DEL', key)
    redis.call('ZREM', messages, key)
  end
end
return before
"""
GET = """
local found = {}
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if redis.call('EXISTS', key) == 1 then
    table.insert(found, redis.call('GET', key))
  else
    redis.call('ZREM', KEYS[1], key)
  end
end
return found
"""
REMOVE = """
local key = KEYS[1] .. '_' .. ARGV[1]
redis.call('ZREM', KEYS[1], key)
return redis.call('DEL', key)
"""
RELEASE = """
local key = KEYS[1] .. '_' .. ARGV[1]
local found = redis.call('GET', key)
if not found then return 0 end
local message = cjson.decode(found)
message.packetType = 'PUBREL'
redis.call('SET', key, cjson.encode(message))
return 1
"""


class LiteralQueue:
    def __init__(self, client: Any, client_id: str, limit: int = LIMIT) -> None:
        self._client = client
        self._limit = limit
        self.messages = f"{{{client_id}}}_messages"
        self.last_id = f"{{{client_id}}}_last_packet_id"

    def add(self, *payloads: str, **more: Any) -> int:
        """The last packet identifier before them."""
        words = json.dumps([{"payload": payload, **more} for payload in payloads])
        before: int = self._client.eval(
            ADD, 2, self.messages, self.last_id, self._limit, words, TTL_S
        )
        return before

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self._client.eval(GET, 1, self.messages)]

    def payloads(self) -> list[str]:
        return [each["payload"] for each in self.all()]

    def remove(self, *packet_ids: int) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for packet_id in packet_ids:
                pipeline.eval(REMOVE, 1, self.messages, packet_id)
            pipeline.execute()

    def release(self, packet_id: int) -> None:
        """PUBREC has come."""
        self._client.eval(RELEASE, 1, self.messages, packet_id)

    def ttl_s(self, packet_id: int) -> int:
        """-1: it never expires."""
        found: int = self._client.ttl(f"{self.messages}_{packet_id}")
        return found
