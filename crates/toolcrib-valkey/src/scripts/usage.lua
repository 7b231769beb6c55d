-- Usage of limits. All counters of a caller are fields of one hash. Times are microseconds of the server's clock.
--
-- KEYS: usage of the caller, index of all callers ordered by expiry
-- ARGV: operation, caller, number of counters, four values for each counter (field, calls, period, longest wait of a call, or '' for
-- a quota), then the arguments of the operation

-- Calls are recorded individually up to this number. Beyond it, calls within the same fraction of the period are grouped and
-- expire together with the last of them.
local PARTS = 64

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local operation, caller, count = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ARGUMENTS = 4 + count * 4

-- Adding zero makes a negative zero positive.
local function format(number)
  return string.format('%.0f', number + 0)
end

-- A sliding window: first time, last time and calls of each part, one after the other.
local Window = {}
Window.__index = Window

function Window.load(state, max, per)
  local window = setmetatable({ max = max, per = per, parts = {}, calls = 0 }, Window)
  local saved = state and cmsgpack.unpack(state) or {}
  for position = 1, #saved, 3 do
    if now - saved[position + 1] < per and saved[position + 2] > 0 then
      for offset = 0, 2 do
        window.parts[#window.parts + 1] = saved[position + offset]
      end
      window.calls = window.calls + saved[position + 2]
    end
  end
  return window
end

-- Returns the time until another call is allowed.
function Window:wait()
  if self.calls < self.max then
    return 0
  end
  local over = self.calls - self.max
  for position = 1, #self.parts, 3 do
    local calls = self.parts[position + 2]
    if over < calls then
      return math.max(self.parts[position + 1] + self.per - now, 1)
    end
    over = over - calls
  end
  return self.per
end

function Window:used()
  return self.calls
end

function Window:free()
  return self.max - self.calls
end

function Window:take(calls, at)
  local parts = self.parts
  local last = #parts - 2
  self.calls = self.calls + calls
  local is_grouping = #parts >= PARTS * 3 and at - parts[last] < self.per / PARTS
  if last > 0 and (is_grouping or (parts[last] == at and parts[last + 1] == at)) then
    parts[last] = math.min(parts[last], at)
    parts[last + 1] = math.max(parts[last + 1], at)
    parts[last + 2] = parts[last + 2] + calls
  else
    parts[#parts + 1] = at
    parts[#parts + 1] = at
    parts[#parts + 1] = calls
  end
end

function Window:release(calls, at)
  for position = 1, #self.parts, 3 do
    if self.parts[position] <= at and at <= self.parts[position + 1] then
      local released = math.min(calls, self.parts[position + 2])
      self.parts[position + 2] = self.parts[position + 2] - released
      calls = calls - released
    end
  end
end

function Window:save()
  return cmsgpack.pack(self.parts)
end

-- A token bucket that is refilled evenly: the time at which it is full.
local Bucket = {}
Bucket.__index = Bucket

function Bucket.load(state, max, per)
  local full_at = math.max(state and tonumber(state) or now, now)
  return setmetatable({ max = max, interval = math.max(per / max, 0.001), full_at = full_at }, Bucket)
end

function Bucket:wait()
  return math.max(math.ceil(self.full_at - now + self.interval - self.interval * self.max - 0.01), 0)
end

function Bucket:used()
  return math.ceil((self.full_at - now) / self.interval - 0.000001)
end

function Bucket:free()
  return self.max - self:used()
end

function Bucket:take(calls)
  self.full_at = self.full_at + calls * self.interval
end

function Bucket:release(calls)
  self.full_at = self.full_at - calls * self.interval
end

function Bucket:save()
  return string.format('%.17g', self.full_at)
end

local counters = {}
for number = 1, count do
  local first = number * 4
  local counter = {
    field = ARGV[first],
    per = tonumber(ARGV[first + 2]),
    max_wait = tonumber(ARGV[first + 3]) or 0,
  }
  local kind = ARGV[first + 3] == '' and Window or Bucket
  if operation ~= 'clear' then
    local state = redis.call('HGET', KEYS[1], counter.field)
    counter.calls = kind.load(state, tonumber(ARGV[first + 1]), counter.per)
  end
  counters[number] = counter
end

-- Saves the counters. The usage expires with the longest of its periods.
local function save(delay)
  local longest = 0
  for _, counter in ipairs(counters) do
    redis.call('HSET', KEYS[1], counter.field, counter.calls:save())
    longest = math.max(longest, counter.per)
  end
  local lifetime = math.ceil((longest + delay) / 1000) + 1
  lifetime = math.max(lifetime, redis.call('PTTL', KEYS[1]))
  redis.call('PEXPIRE', KEYS[1], format(lifetime))
  redis.call('ZADD', KEYS[2], format(now / 1000 + lifetime), caller)
end

-- Counts one call in every counter or in none, and further calls as far as every counter has them free.
local function reserve(max_wait, wanted)
  local delay, refused, longest = 0, nil, -1
  for number, counter in ipairs(counters) do
    local wait = counter.calls:wait()
    if wait > 0 then
      if wait <= math.min(counter.max_wait, max_wait) then
        delay = math.max(delay, wait)
      elseif wait > longest then
        refused, longest = number, wait
      end
    end
  end
  if refused then
    return { 0, refused, format(longest) }
  end
  local taken = delay > 0 and 1 or wanted
  for _, counter in ipairs(counters) do
    taken = math.min(taken, math.max(counter.calls:free(), 1))
  end
  local send_at = now + delay
  for _, counter in ipairs(counters) do
    counter.calls:take(taken, send_at)
  end
  save(delay)
  return { taken, format(send_at), format(delay) }
end

if operation == 'reserve' then
  return reserve(tonumber(ARGV[ARGUMENTS]) or math.huge, tonumber(ARGV[ARGUMENTS + 1]))
elseif operation == 'release' then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    for _, counter in ipairs(counters) do
      counter.calls:release(tonumber(ARGV[ARGUMENTS + 1]), tonumber(ARGV[ARGUMENTS]))
    end
    save(0)
  end
  return 1
elseif operation == 'usage' then
  local usage = {}
  for _, counter in ipairs(counters) do
    usage[#usage + 1] = counter.calls:used()
    usage[#usage + 1] = format(counter.calls:wait())
  end
  return usage
elseif operation == 'clear' then
  for _, counter in ipairs(counters) do
    redis.call('HDEL', KEYS[1], counter.field)
  end
  if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('ZREM', KEYS[2], caller)
  end
  return 1
elseif operation == 'callers' then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', format(now / 1000))
  return redis.call('ZRANGE', KEYS[2], 0, -1)
end
return redis.error_reply('ERR unknown operation')
