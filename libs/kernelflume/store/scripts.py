"""The Lua that Redis runs: each script is one atomic step. All keys of a script share one hash slot."""

from __future__ import annotations

PUBLISH = """
-- KEYS: table, fence
-- ARGV: epoch before (-1: any older one), epoch after, snapshot, publish id, fencing token or '', channel
local epoch = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
local before, after = tonumber(ARGV[1]), tonumber(ARGV[2])
-- The client sends a command again when its connection broke before the reply: the first one may have won.
if epoch == after and redis.call('HGET', KEYS[1], 'publish_id') == ARGV[4] then
  return {'written', epoch}
end
if ARGV[5] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[5] then
  return {'fenced', epoch}
end
if epoch >= after or (before >= 0 and epoch ~= before) then
  return {'conflict', epoch}
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[2], 'snapshot', ARGV[3], 'publish_id', ARGV[4])
redis.call('PUBLISH', ARGV[6], ARGV[2])
return {'written', after}
"""

WRITE_SETTING = """
-- KEYS: setting, fence. ARGV: text, fencing token or '', ttl in ms or ''
if ARGV[2] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[2] then
  return 0
end
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
else
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
"""

RENEW = """
-- KEYS: leases, expiries. ARGV: node id, record, ttl in ms
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now_ms + ARGV[3]), ARGV[1])
return 1
"""

RELEASE = """
-- KEYS: leases, expiries. ARGV: node id, incarnation
local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record or cjson.decode(record).incarnation ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

LIVING = """
-- KEYS: leases, expiries
local now = redis.call('TIME')
local now_ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
for _, node_id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now_ms)) do
  redis.call('HDEL', KEYS[1], node_id)
  redis.call('ZREM', KEYS[2], node_id)
end
return redis.call('HVALS', KEYS[1])
"""

LEAD = """
-- KEYS: leader, fence. ARGV: candidate, ttl in ms
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return nil
end
if holder then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return redis.call('GET', KEYS[2])
end
-- The clock keeps the token growing even when the counter was lost with all other data.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local token = string.format('%.0f', math.max((redis.call('GET', KEYS[2]) or 0) + 1, now_ms))
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return token
"""

RESIGN = """
-- KEYS: leader. ARGV: candidate
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
