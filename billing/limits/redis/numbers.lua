-- Microseconds here may need more than the 53 bits of a double: a number is two, high * 10^12 + low, 0 <= low < 10^12.
local BASE = 1e12
-- Keys live a minute longer than they matter: the server's clock may be set back.
local SLACK_MS, LONGEST_MS = 60000, 1e15

local function plus(high, low, more_high, more_low)
  low = low + more_low
  if low >= BASE then return high + more_high + 1, low - BASE end
  return high + more_high, low
end

local function minus(high, low, less_high, less_low)
  low = low - less_low
  if low < 0 then return high - less_high - 1, low + BASE end
  return high - less_high, low
end

local function is_positive(high, low)
  return high > 0 or (high == 0 and low > 0)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- The test's clock if it gave one, else the server's: all gateways share it, whatever their own clocks say.
local function clock(given)
  local now = tonumber(given)
  if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1e6 + tonumber(time[2])
  end
  return now, math.floor(now / BASE), now % BASE
end

-- The bucket's tat, not before now: an absent bucket is a full one.
local function load(key, now_high, now_low)
  local text = redis.call('GET', key)
  if not text then return now_high, now_low end
  local high, low = string.match(text, '^(%-?%d+) (%d+)$')
  high, low = tonumber(high), tonumber(low)
  if is_positive(minus(now_high, now_low, high, low)) then return now_high, now_low end
  return high, low
end

local function store(key, high, low, now_high, now_low)
  local ahead_high, ahead_low = minus(high, low, now_high, now_low)
  if not is_positive(ahead_high, ahead_low) then
    redis.call('DEL', key)
    return
  end
  local ms = math.min(math.ceil(ahead_high * (BASE / 1000) + ahead_low / 1000) + SLACK_MS, LONGEST_MS)
  redis.call('SET', key, whole(high) .. ' ' .. whole(low), 'PX', whole(ms))
end

-- Takes more from a bucket, whatever is left of it; gives back where the numbers are negative.
local function adjust(key, more_high, more_low, now_high, now_low)
  local high, low = load(key, now_high, now_low)
  high, low = plus(high, low, tonumber(more_high), tonumber(more_low))
  store(key, high, low, now_high, now_low)
end

local function hold(leases, holder, now, ttl)
  redis.call('ZADD', leases, whole(now + ttl), holder)
  local ms = math.ceil(ttl / 1000) + SLACK_MS
  if redis.call('PTTL', leases) < ms then redis.call('PEXPIRE', leases, whole(ms)) end
end
