"""The library of functions that run in Redis, each as one atomic call.

The names of the library and of its functions end with a digest of its text. So two versions of
flowguard can use one server, and a server that lost the library gets it again.

`commit_stream`, `commit_zset`  one for each layout of queues. KEYS: the prefix's own; the states of
the changed sessions; then the keys of each part in turn. ARGV: token, number of the commit, number
of sessions, the parts, sessions first. A part is a letter, and the keys and arguments of its kind:

    q  queue; head, entries, settled: only the queue of a session changes
    p  session, queue, released; head: any change of an existing session
    n  as p, and owner and client ids of the bucket; client id, head: a new session, which replaces
       one of the same client id
    d  the keys of n; client id, head: the session ends
    r  owner and retained messages of a bucket; number of fields to put and to drop, fields and
       values, then fields: retained messages

States are read together and written together, since a call of a command costs more than its work.
For a part `q`, the queue is the only key with calls of its own.

A head is one word, big endian: u32 entries to add, u32 settled positions, u64 bytes of the added
entries, u64 bytes of the settled ones, u64 the session's last commit, u64 next position, u64
highest position sent. All kinds but `q` also have u32 fields to put, u32 fields to drop, u32
positions to settle whose bytes are unknown, u32 positions to release. The lists follow in this
order: fields and values, fields, entries (as the layout defines), settled, unknown, released
positions and packet identifiers.

The answer has the rejected parts, each with its number, a reason and the session's last commit in
Redis. A part that this commit or a later one has already changed is skipped, so a commit may be
sent again, and a late copy of it does nothing. If the prefix belongs to another token, the whole
commit is rejected, as part -1: sessions get their new owner one after the other, and half of a
commit of the old owner (say a message without its packet identifier) would be worse than none.

`adopt`  makes a token the owner of a bucket and of its sessions, and returns these. A late copy of
the call, after the owner has begun, only returns them. `claim` gives an increasing number (epoch)
to each owner. If the bucket has a later owner's epoch, the answer is 0.
In a Redis Cluster a commit is one call for each bucket, which has the prefix's own key.
`intend`  records such a commit beside the lease, before the first of its calls (`intent`).
`meet`  is the sign of life of a node of a cluster: it stores its record ("" removes it) and what
shards it has claimed, and returns the whole table with Redis's time (`cluster_table`). While a node
with another id lives at the same address, it stores nothing.
`mark`  lets nodes of a cluster take no shards, or ends that (first argument "").
`claim`, `hold`, `leave`  are the broker's lease of the whole prefix. `claim` without its last
argument only checks the lease, and its answer has no epoch. `hold` with a second argument notes
that the owner has adopted all buckets. `leave` with a second argument deletes the record of the
last commit, which is complete.
"""

from hashlib import sha256
from typing import Final

from flowguard.stores.redis.lua.queue_functions import QUEUES

WHOLE: Final = -1
"""Part number that stands for the whole commit."""
REFUSED_FENCED: Final = 1
"""Reason: another token owns the session or the bucket. Reason 2: Redis has lost the session or its
last commit."""

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

local function state_of(token, seq, size, next_pos, sent_pos)
  return struct.pack('>I8I8I8I8', seq, size, next_pos, sent_pos) .. token
end

local function token_of(state) return string.sub(state, 33) end

local function may_change(state, token, last, seq)
  if not state then return 2, -1 end
  if token_of(state) ~= token then return 1, 0 end
  local there, size = struct.unpack('>I8I8', state)
  if there >= seq then return 0, there end
  if there < last then return 2, there end
  return nil, there, size
end

local function may_replace(state, bucket, token, seq, before)
  if state then
    if token_of(state) ~= token then return 1, 0 end
    if struct.unpack('>I8', state) >= seq then return 0, 0 end
  end
  local owner = before[bucket]
  if not owner then
    owner = redis.call('HMGET', bucket, 'o', 'd')
    before[bucket] = owner
  end
  if owner[1] ~= token then return 1, 0 end
  if owner[2] and tonumber(owner[2]) >= seq then return 0, 0 end
  return nil
end

local function released_of(queue)
  local at = string.find(queue, '}:q:', 1, true)
  return string.sub(queue, 1, at + 1) .. 'u' .. string.sub(queue, at + 3)
end

local function settle(queues, queue, argv, at, count, size, settled_size)
  local gone = 0
  if count <= PAGE then
    gone = queues.remove(queue, argv, at, at + count - 1)
  else
    each_page(at, count, function(from, to)
      gone = gone + queues.remove(queue, argv, from, to)
    end)
  end
  if gone == count then return size - settled_size end
  local released = released_of(queue)
  each_page(at, count, function(from, to)
    redis.call('HDEL', released, unpack(argv, from, to))
  end)
  return queues.bytes_of(queue)
end

local function add_and_settle(queues, queue, argv, at, adds, settled, size, settled_size)
  for _ = 1, adds do
    queues.add(queue, argv[at], argv[at + 1], argv[at + 2])
    at = at + 3
  end
  if settled > 0 then size = settle(queues, queue, argv, at, settled, size, settled_size) end
  return at + settled, size
end

local function on_queue(queues, queue, argv, at, state, token, seq)
  local adds, settled, added_size, settled_size, last, next_pos, sent_pos =
    struct.unpack('>I4I4I8I8I8I8I8', argv[at])
  local code, there, size = may_change(state, token, last, seq)
  if code then return at + 1 + 3 * adds + settled, nil, code, there end
  at, size = add_and_settle(
    queues, queue, argv, at + 1, adds, settled, size + added_size, settled_size
  )
  return at, state_of(token, seq, size, next_pos, sent_pos)
end

local HEAD = '>I4I4I8I8I8I8I8I4I4I4I4'

local function length(head)
  local adds, settled, _, _, _, _, _, puts, drops, unknown, releases =
    struct.unpack(HEAD, head)
  return 2 * puts + drops + 3 * adds + settled + unknown + 2 * releases
end

local function change(queues, session, queue, released, argv, at, token, size, seq)
  local adds, settled, added_size, settled_size, _, next_pos, sent_pos,
    puts, drops, unknown, releases = struct.unpack(HEAD, argv[at])
  at = each_page(at + 1, 2 * puts, function(from, to)
    redis.call('HSET', session, unpack(argv, from, to))
  end)
  at = each_page(at, drops, function(from, to)
    redis.call('HDEL', session, unpack(argv, from, to))
  end)
  at, size = add_and_settle(
    queues, queue, argv, at, adds, settled, size + added_size, settled_size
  )
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
  return state_of(token, seq, size, next_pos, sent_pos)
end

local function on_session(queues, kind, keys, key, argv, at, state, token, seq, before)
  local session, queue, released = keys[key], keys[key + 1], keys[key + 2]
  if kind == 'p' then
    local after = at + 1 + length(argv[at])
    local last = struct.unpack('>I8', argv[at], 25)
    local code, there, size = may_change(state, token, last, seq)
    if code then return key + 3, after, nil, code, there end
    return key + 3, after, change(queues, session, queue, released, argv, at, token, size, seq)
  end
  local bucket, clients, client_id = keys[key + 3], keys[key + 4], argv[at]
  at = at + 1
  local after = at + 1 + length(argv[at])
  local code, there = may_replace(state, bucket, token, seq, before)
  if code then return key + 5, after, nil, code, there end
  queues.drop(queue)
  redis.call('UNLINK', session, released)
  if kind == 'n' then
    redis.call('SADD', clients, client_id)
    return key + 5, after, change(queues, session, queue, released, argv, at, token, 0, seq)
  end
  redis.call('SREM', clients, client_id)
  redis.call('HSET', bucket, 'd', seq)
  return key + 5, after, false
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
  local token, seq, count = argv[1], tonumber(argv[2]), tonumber(argv[3])
  local whole = redis.call('HMGET', keys[1], 'token', 'last')
  if whole[1] ~= token then return {-1, 1, 0} end
  local states = {}
  each_page(2, count, function(from, to)
    local page = redis.call('MGET', unpack(keys, from, to))
    if from == 2 then
      states = page
    else
      for index = 1, #page do states[from + index - 2] = page[index] end
    end
  end)
  -- What buckets were before: a commit may drop several sessions of one, or drop and make some.
  local before = {}
  local written, refused = {}, {}
  local key, at, part = 2 + count, 4, 0
  while at <= #argv do
    local kind, state, code, there = argv[at], nil, nil, nil
    if kind == 'q' then
      at, state, code, there =
        on_queue(queues, keys[key], argv, at + 1, states[part + 1], token, seq)
      key = key + 1
    elseif kind == 'r' then
      key, at, code, there = on_retained(keys, key, argv, at + 1, token, seq)
    else
      key, at, state, code, there =
        on_session(queues, kind, keys, key, argv, at + 1, states[part + 1], token, seq, before)
    end
    if state then
      written[#written + 1] = keys[part + 2]
      written[#written + 1] = state
    elseif state == false then
      redis.call('UNLINK', keys[part + 2])
    elseif code and code > 0 then
      table.insert(refused, part)
      table.insert(refused, code)
      table.insert(refused, there)
    end
    part = part + 1
  end
  each_page(1, #written, function(from, to)
    redis.call('MSET', unpack(written, from, to))
  end)
  if tonumber(whole[2]) < seq then redis.call('HSET', keys[1], 'last', argv[2]) end
  return refused
end

local function commit_stream(keys, argv) return commit(stream, keys, argv) end
local function commit_zset(keys, argv) return commit(zset, keys, argv) end

local function adopt(keys, argv)
  local token, start, epoch = argv[1], argv[2], tonumber(argv[3])
  local owner = redis.call('HMGET', keys[1], 'o', 'e')
  local is_mine = owner[1] == token
  if not is_mine then
    if owner[2] and tonumber(owner[2]) > epoch then return 0 end
    redis.call('HDEL', keys[1], 'd', 'r')
    redis.call('HSET', keys[1], 'o', token, 'e', argv[3])
    if keys[3] then redis.call('HSET', keys[3], 'token', token, 'last', '0') end
  end
  local found = {}
  local clients = redis.call('SMEMBERS', keys[2])
  each_page(1, #clients, function(from, to)
    local names, written = {}, {}
    for at = from, to do names[#names + 1] = start .. 'o:' .. clients[at] end
    local states = redis.call('MGET', unpack(names))
    for index, name in ipairs(names) do
      local state, _, size, next_pos, sent_pos = states[index], 0, 0, 1, 0
      if state then _, size, next_pos, sent_pos = struct.unpack('>I8I8I8I8', state) end
      if state and not is_mine then
        written[#written + 1] = name
        written[#written + 1] = state_of(token, 0, size, next_pos, sent_pos)
      end
      found[#found + 1] = clients[from + index - 1]
      found[#found + 1] = next_pos
      found[#found + 1] = sent_pos
    end
    if #written > 0 then redis.call('MSET', unpack(written)) end
  end)
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
  if found[1] ~= token then
    redis.call('HSET', meta, 'token', token, 'last', '0')
    -- Above all before, also if a fail-over has lost the last ones: they are milliseconds.
    local before = tonumber(redis.call('HGET', meta, 'epoch') or '0')
    redis.call('HSET', meta, 'epoch', string.format('%.0f', math.max(before + 1, now)))
  end
  redis.call('HSET', meta, 'name', name, 'beat', string.format('%.0f', now), 'runs', runs)
  return {1, found[2] or '', 0, tonumber(redis.call('HGET', meta, 'epoch'))}
end

local function hold(keys, argv)
  local found = redis.call('HMGET', keys[1], 'token', 'name')
  if found[1] ~= argv[1] then return {0, found[2] or ''} end
  local now = string.format('%.0f', now_ms())
  redis.call('HSET', keys[1], 'beat', now)
  if argv[2] then redis.call('HSET', keys[1], 'adopted', argv[1]) end
  return {1, found[2], now}
end

local function leave(keys, argv)
  if redis.call('HGET', keys[1], 'token') == argv[1] then
    redis.call('HSET', keys[1], 'beat', '0')
    if argv[2] then redis.call('DEL', keys[2]) end
  end
  return 1
end

local function meet(keys, argv)
  local table, name, record, id = keys[1], argv[1], argv[2], argv[4]
  redis.call('HSETNX', table, 'shards', argv[3])
  local last = redis.call('HGET', table, 'n' .. name) or '0 '
  local beat, owner = string.match(last, '^(%d+) (%S*)')
  if owner ~= id and now_ms() - tonumber(beat) <= tonumber(argv[5]) then
    return {string.format('%.0f', now_ms()), redis.call('HGETALL', table)}
  end
  if record == '' then
    redis.call('HDEL', table, 'n' .. name, 'd' .. name)
  else
    redis.call('HSET', table, 'n' .. name, string.format('%.0f %s ', now_ms(), id) .. record)
  end
  for at = 6, #argv, 2 do
    local field = 's' .. argv[at]
    local known = redis.call('HGET', table, field)
    local number = tonumber(argv[at + 1])
    if not known or tonumber(string.match(known, '^%d+')) < number then
      redis.call('HSET', table, field, argv[at + 1] .. ' ' .. name)
    end
  end
  return {string.format('%.0f', now_ms()), redis.call('HGETALL', table)}
end

local function mark(keys, argv)
  for at = 2, #argv do
    if argv[1] == '' then
      redis.call('HDEL', keys[1], 'd' .. argv[at])
    else
      redis.call('HSET', keys[1], 'd' .. argv[at], argv[1])
    end
  end
  return 1
end

local function intend(keys, argv)
  if redis.call('HGET', keys[1], 'token') ~= argv[1] then return 0 end
  redis.call('SET', keys[2], argv[2])
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
INTEND: Final = f"flowguard_intend_{_DIGEST}".encode()
MEET: Final = f"flowguard_meet_{_DIGEST}".encode()
MARK: Final = f"flowguard_mark_{_DIGEST}".encode()
_FUNCTIONS: Final = (
    "commit_stream",
    "commit_zset",
    "adopt",
    "claim",
    "hold",
    "leave",
    "intend",
    "meet",
    "mark",
)


def _registered(name: str) -> str:
    """Return the registration of a function. It may run when Redis is out of memory, since the
    store has a reserve."""
    return (
        f"redis.register_function{{function_name='flowguard_{name}_{_DIGEST}', "
        f"callback={name}, flags={{'allow-oom'}}}}"
    )


LIBRARY: Final = "\n".join(
    (
        f"#!lua name={LIBRARY_NAME}",
        QUEUES,
        _TEXT,
        *map(_registered, _FUNCTIONS),
    )
)
"""Source of the library for FUNCTION LOAD."""
