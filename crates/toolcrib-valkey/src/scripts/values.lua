-- Operations on values. Each value has a key, and each kind of value an index of its names, ordered by expiry.
--
-- KEYS: value, index of its kind; for `exchange` also the value that is set and the index of its kind
-- ARGV: operation, prefix of the keys of the kind, name, ...

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Sets a value. A kind with a maximum loses what expires first.
local function put(key, index, prefix, name, value, ttl, max)
  local time = now()
  local expires = '+inf'
  if ttl == '' then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', ttl)
    expires = time + ttl
  end
  redis.call('ZREMRANGEBYSCORE', index, '-inf', time)
  redis.call('ZADD', index, expires, name)
  local over = max == '' and 0 or redis.call('ZCARD', index) - max
  if over > 0 then
    local evicted = redis.call('ZPOPMIN', index, over)
    for position = 1, #evicted, 2 do
      redis.call('DEL', prefix .. evicted[position])
    end
  end
end

local function take(key, index, name)
  local value = redis.call('GET', key)
  if value then
    redis.call('DEL', key)
    redis.call('ZREM', index, name)
  end
  return value
end

local operation, prefix, name = ARGV[1], ARGV[2], ARGV[3]

if operation == 'put' then
  put(KEYS[1], KEYS[2], prefix, name, ARGV[4], ARGV[5], ARGV[6])
  return 1
elseif operation == 'put-if-absent' then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
  end
  put(KEYS[1], KEYS[2], prefix, name, ARGV[4], ARGV[5], ARGV[6])
  return 1
elseif operation == 'replace' then
  if redis.call('GET', KEYS[1]) ~= ARGV[7] then
    return 0
  end
  put(KEYS[1], KEYS[2], prefix, name, ARGV[4], ARGV[5], ARGV[6])
  return 1
elseif operation == 'take' then
  return take(KEYS[1], KEYS[2], name)
elseif operation == 'exchange' then
  local taken = take(KEYS[1], KEYS[2], name)
  if taken then
    put(KEYS[3], KEYS[4], ARGV[7], ARGV[8], ARGV[4], ARGV[5], ARGV[6])
  end
  return taken
elseif operation == 'get-with-ttl' then
  return { redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]) }
elseif operation == 'list' then
  local found = {}
  for _, listed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], now(), '+inf')) do
    if string.sub(listed, 1, #name) == name then
      local value = redis.call('GET', prefix .. listed)
      if value then
        found[#found + 1] = listed
        found[#found + 1] = value
      end
    end
  end
  return found
end
return redis.error_reply('ERR unknown operation')
