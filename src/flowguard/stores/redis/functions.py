"""The library of functions that run in Redis, each of them at once and as a whole.

Its name and those of its functions end with a digest of its text: two versions of flowguard may use
one server, none replaces the other's, and a server that lost the library is simply given it again.

`commit_stream`, `commit_zset`  one for each layout of queues. KEYS: the prefix's own, then those of
each part in turn. ARGV: token, number of the commit, the parts. A part is its kind, then what the
kind has:

    p  keys of a session; head: a change of a session that is there
    n  keys of a session, owner and client ids of its bucket; client id, head: a new session, in
       place of one that may be there
    d  the same keys; client id, head: the session ends
    r  owner and retained messages of a bucket; fields and values, then fields: put, and dropped

The head of a session is one word of counts, big endian: u32 fields to put, u32 fields to drop, u32
entries to add, u32 settled positions and u64 their bytes, u32 positions to settle of which the
bytes are not known, u32 positions to release; u64 its last commit. Then all of these. The answer
names the parts that were refused, each by its number, a reason and what Redis has as the session's
last commit. A part that this commit, or a later one, has already changed is left alone, so that a
commit may be sent again, and a copy of it that comes late does nothing. Where the prefix is another
token's, all of it is refused, as part -1: its sessions get their new owner one after the other, and
half of a commit of the old one, say the message without the packet identifier that it came with,
would be worse than none.

`adopt`  makes a token the owner of a bucket and of its sessions, and says which there are. What
comes late of it, when the owner has begun already, only says so.
In a Redis Cluster a commit is one call for each bucket, and the bucket has the prefix's own key.
`claim`, `hold`, `leave`  are the broker's lease of the whole prefix; `claim` without its last
argument only looks.
"""

from hashlib import sha256
from typing import Final

from flowguard.stores.redis.queue_functions import QUEUES

WHOLE: Final = -1
"""Instead of a part: all of the commit."""
REFUSED_FENCED: Final = 1
"""Another token is the session's owner, or the bucket's."""
REFUSED_BEHIND: Final = 2
"""Redis has not the session's last commit, or not the session: it has gone back."""

_TEXT: Final = """
local function each_page(at, count, call)
  while count > 0 do
    local some = math.min(count, PAGE)
    call(at, at + some - 1)
    at = at + some
    count = count - some
  end
  return at
end

local function settle(queues, queue, released, argv, at, count, size)
  local gone = 0
  local first = at
  at = each_page(at, count, function(from, to)
    gone = gone + queues.remove(queue, argv, from, to)
  end)
  if gone == count then return at, size end
  each_page(first, count, function(from, to)
    redis.call('HDEL', released, unpack(argv, from, to))
  end)
  return at, nil
end

local function change(queues, session, queue, released, argv, at, head, size, seq)
  local puts, drops, adds, settled, settled_size, unknown, releases = unpack(head)
  local first, last = at, at + 2 * puts - 1
  at = each_page(last + 1, drops, function(from, to)
    redis.call('HDEL', session, unpack(argv, from, to))
  end)
  for _ = 1, adds do
    queues.add(queue, argv[at], argv[at + 1])
    size = size + size_of(argv[at + 1])
    at = at + 2
  end
  if settled > 0 then
    local less
    at, less = settle(queues, queue, released, argv, at, settled, settled_size)
    size = less and size - less or queues.bytes_of(queue)
  end
  for _ = 1, unknown do
    local less = queues.take(queue, argv[at])
    if less then
      size = size - less
    else
      redis.call('HDEL', released, argv[at])
    end
    at = at + 1
  end
  for _ = 1, releases do
    local less = queues.take(queue, argv[at])
    if less then
      size = size - less
      redis.call('HSET', released, argv[at], argv[at + 1])
    end
    at = at + 2
  end
  if puts > PAGE then
    each_page(first, 2 * puts, function(from, to)
      redis.call('HSET', session, unpack(argv, from, to))
    end)
    first, last = 1, 0
  end
  redis.call('HSET', session, 'v', seq, 'b', size, unpack(argv, first, last))
end

local function length(head)
  return 2 * head[1] + head[2] + 2 * head[3] + head[4] + head[6] + 2 * head[7]
end

local function may_change(found, token, last, seq)
  if not found[1] then return 2, -1 end
  if found[1] ~= token then return 1, 0 end
  local there = tonumber(found[2])
  if there >= seq then return 0, there end
  if there < last then return 2, there end
  return nil
end

local function may_replace(found, bucket, token, seq, before)
  if found[1] and found[1] ~= token then return 1, 0 end
  if found[1] and tonumber(found[2]) >= seq then return 0, 0 end
  local owner = before[bucket]
  if not owner then
    owner = redis.call('HMGET', bucket, 'o', 'd')
    before[bucket] = owner
  end
  if owner[1] ~= token then return 1, 0 end
  if owner[2] and tonumber(owner[2]) >= seq then return 0, 0 end
  return nil
end

local function on_session(queues, kind, keys, key, argv, at, token, seq, before)
  local session, queue, released = keys[key], keys[key + 1], keys[key + 2]
  local client_id
  if kind ~= 'p' then
    client_id = argv[at]
    at = at + 1
  end
  local head = {struct.unpack('>I4I4I4I4I8I4I4I8', argv[at])}
  local after = at + 1 + length(head)
  local found = redis.call('HMGET', session, 'o', 'v', 'b')
  if kind == 'p' then
    local code, there = may_change(found, token, head[8], seq)
    if not code then
      change(queues, session, queue, released, argv, at + 1, head, tonumber(found[3]), seq)
    end
    return key + 3, after, code, there
  end
  local code, there = may_replace(found, keys[key + 3], token, seq, before)
  if not code then
    queues.drop(queue)
    redis.call('UNLINK', session, released)
    if kind == 'n' then
      redis.call('SADD', keys[key + 4], client_id)
      redis.call('HSET', session, 'o', token)
      change(queues, session, queue, released, argv, at + 1, head, 0, seq)
    else
      redis.call('SREM', keys[key + 4], client_id)
      redis.call('HSET', keys[key + 3], 'd', seq)
    end
  end
  return key + 5, after, code, there
end

local function on_retained(keys, key, argv, at, token, seq)
  local bucket, retained = keys[key], keys[key + 1]
  local puts, drops = tonumber(argv[at]), tonumber(argv[at + 1])
  local owner = redis.call('HMGET', bucket, 'o', 'r')
  local code
  if owner[1] ~= token then
    code = 1
  elseif owner[2] and tonumber(owner[2]) >= seq then
    code = 0
  else
    local to_drop = each_page(at + 2, 2 * puts, function(from, to)
      redis.call('HSET', retained, unpack(argv, from, to))
    end)
    each_page(to_drop, drops, function(from, to)
      redis.call('HDEL', retained, unpack(argv, from, to))
    end)
    redis.call('HSET', bucket, 'r', seq)
  end
  return key + 2, at + 2 + 2 * puts + drops, code, 0
end

local function commit(queues, keys, argv)
  local token, seq = argv[1], tonumber(argv[2])
  local whole = redis.call('HMGET', keys[1], 'token', 'last')
  if whole[1] ~= token then return {-1, 1, 0} end
  -- What buckets were before: a commit may drop several sessions of one, or drop and make some.
  local before = {}
  local key, at, part, refused = 2, 3, 0, {}
  while at <= #argv do
    local kind = argv[at]
    local code, there
    if kind == 'r' then
      key, at, code, there = on_retained(keys, key, argv, at + 1, token, seq)
    else
      key, at, code, there = on_session(queues, kind, keys, key, argv, at + 1, token, seq, before)
    end
    if code and code > 0 then
      table.insert(refused, part)
      table.insert(refused, code)
      table.insert(refused, there)
    end
    part = part + 1
  end
  if tonumber(whole[2]) < seq then redis.call('HSET', keys[1], 'last', argv[2]) end
  return refused
end

local function commit_stream(keys, argv) return commit(stream, keys, argv) end
local function commit_zset(keys, argv) return commit(zset, keys, argv) end

local function adopt(keys, argv)
  local token, start = argv[1], argv[2]
  local is_mine = redis.call('HGET', keys[1], 'o') == token
  if not is_mine then
    redis.call('HDEL', keys[1], 'd', 'r')
    redis.call('HSET', keys[1], 'o', token)
    if keys[3] then redis.call('HSET', keys[3], 'token', token, 'last', '0') end
  end
  local found = {}
  for _, client_id in ipairs(redis.call('SMEMBERS', keys[2])) do
    local session = start .. 's:' .. client_id
    if not is_mine then redis.call('HSET', session, 'o', token, 'v', 0) end
    local positions = redis.call('HMGET', session, 'p', 'm')
    table.insert(found, client_id)
    table.insert(found, positions[1])
    table.insert(found, positions[2])
  end
  return found
end

local function claim(keys, argv)
  local meta, token, name, lease_ms, runs = keys[1], argv[1], argv[2], tonumber(argv[3]), argv[4]
  local found = redis.call('HMGET', meta, 'token', 'name', 'beat')
  local now = now_ms()
  if found[1] and found[1] ~= token then
    local left_ms = tonumber(found[3]) + lease_ms - now
    if left_ms > 0 then return {0, found[2], left_ms} end
  end
  if not runs then return {1, found[2] or '', 0} end
  if found[1] ~= token then redis.call('HSET', meta, 'token', token, 'last', '0') end
  redis.call('HSET', meta, 'name', name, 'beat', string.format('%.0f', now), 'runs', runs)
  return {1, found[2] or '', 0}
end

local function hold(keys, argv)
  local found = redis.call('HMGET', keys[1], 'token', 'name')
  if found[1] ~= argv[1] then return {0, found[2] or ''} end
  redis.call('HSET', keys[1], 'beat', string.format('%.0f', now_ms()))
  return {1, found[2]}
end

local function leave(keys, argv)
  if redis.call('HGET', keys[1], 'token') == argv[1] then
    redis.call('HSET', keys[1], 'beat', '0')
  end
  return 1
end
"""

_DIGEST: Final = sha256((QUEUES + _TEXT).encode()).hexdigest()[:8]
LIBRARY_NAME: Final = f"flowguard_{_DIGEST}"
COMMIT_STREAM: Final = f"flowguard_commit_stream_{_DIGEST}".encode()
COMMIT_ZSET: Final = f"flowguard_commit_zset_{_DIGEST}".encode()
ADOPT: Final = f"flowguard_adopt_{_DIGEST}".encode()
CLAIM: Final = f"flowguard_claim_{_DIGEST}".encode()
HOLD: Final = f"flowguard_hold_{_DIGEST}".encode()
LEAVE: Final = f"flowguard_leave_{_DIGEST}".encode()


def _registered(name: str) -> str:
    """Register a function; a commit is admitted by the store, which keeps a reserve of memory."""
    return (
        f"redis.register_function{{function_name='flowguard_{name}_{_DIGEST}', "
        f"callback={name}, flags={{'allow-oom'}}}}"
    )


LIBRARY: Final = "\n".join(
    (
        f"#!lua name={LIBRARY_NAME}",
        QUEUES,
        _TEXT,
        *map(_registered, ("commit_stream", "commit_zset", "adopt", "claim", "hold", "leave")),
    )
)
"""The library's source, as FUNCTION LOAD takes it."""
