"""Access to queues for the functions in Redis, one table of Lua for each layout.

add(queue, pos, label, entry)  append; positions only grow; `queues` defines the label
remove(queue, argv, from, to)  settle these positions; return the number of removed entries
take(queue, pos)               settle one; return the size of its entry, or nil
bytes_of(queue)                return the sum of the sizes of all entries
drop(queue)                    delete the queue
"""

from typing import Final

EXPIRY_GRACE_S: Final = 300
"""Time after the expiry of a message until Redis deletes it, in layout `zset`. The broker's clock
decides on expiry; Redis only frees memory of queues that are not read."""

QUEUES: Final = (
    f"""
local PAGE = 1000
local GRACE_MS = {1_000 * EXPIRY_GRACE_S}
"""
    + """
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function size_of(entry)
  local size = struct.unpack('>I4', entry, 3)
  return size
end

local stream = {}

function stream.add(queue, pos, topic, entry)
  redis.call('XADD', queue, pos, topic, entry)
end

function stream.remove(queue, argv, from, to)
  return redis.call('XDEL', queue, unpack(argv, from, to))
end

function stream.take(queue, pos)
  local found = redis.call('XRANGE', queue, pos, pos)
  if #found == 0 then return nil end
  redis.call('XDEL', queue, pos)
  return size_of(found[1][2][2])
end

function stream.bytes_of(queue)
  local total, start = 0, '-'
  while true do
    local page = redis.call('XRANGE', queue, start, '+', 'COUNT', PAGE)
    if #page == 0 then return total end
    for _, entry in ipairs(page) do total = total + size_of(entry[2][2]) end
    start = '(' .. page[#page][1]
  end
end

function stream.drop(queue)
  redis.call('UNLINK', queue)
end

local zset = {}

local function message_names(queue)
  local at = string.find(queue, '}:q:', 1, true)
  return string.sub(queue, 1, at + 1) .. 'm:', string.sub(queue, at + 3)
end

local function in_reference(reference)
  local pos, size = string.match(reference, '^(%d+):(%d+)$')
  return pos, tonumber(size)
end

function zset.add(queue, pos, size, entry)
  local head, tail = message_names(queue)
  if math.floor(string.byte(entry, 2) / 8) % 2 == 1 then
    local expires_at_s = struct.unpack('>d', entry, 7)
    local until_ms = math.max(1000 * expires_at_s, now_ms()) + GRACE_MS
    redis.call('SET', head .. pos .. tail, entry, 'PXAT', string.format('%.0f', until_ms))
  else
    redis.call('SET', head .. pos .. tail, entry)
  end
  redis.call('ZADD', queue, pos, pos .. ':' .. size)
end

function zset.remove(queue, argv, from, to)
  local head, tail = message_names(queue)
  local count, names = 0, {}
  for at = from, to do
    count = count + redis.call('ZREMRANGEBYSCORE', queue, argv[at], argv[at])
    table.insert(names, head .. argv[at] .. tail)
  end
  redis.call('UNLINK', unpack(names))
  return count
end

function zset.take(queue, pos)
  local found = redis.call('ZRANGEBYSCORE', queue, pos, pos)
  if #found == 0 then return nil end
  local head, tail = message_names(queue)
  redis.call('ZREM', queue, found[1])
  redis.call('UNLINK', head .. pos .. tail)
  local _, size = in_reference(found[1])
  return size
end

function zset.bytes_of(queue)
  local total = 0
  for _, reference in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local _, size = in_reference(reference)
    total = total + size
  end
  return total
end

function zset.drop(queue)
  local head, tail = message_names(queue)
  for _, reference in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local pos = in_reference(reference)
    redis.call('UNLINK', head .. pos .. tail)
  end
  redis.call('UNLINK', queue)
end
"""
)
