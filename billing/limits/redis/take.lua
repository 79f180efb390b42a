-- KEYS: with a holder the leases (a sorted set: holder by end) and who waits for one (a hash), then each take's bucket.
-- ARGV: clock, holder ('' for none), limit, ttl, channel, waited ('' for a newcomer), count, WAITING_US; then for each
-- take what it costs and the bucket's burst, two numbers each. All in microseconds.
-- Returns whether it was taken, now, the wait for the lease, and each bucket's tat before, as one text: what is said of
-- them is computed by whoever asked, in whole numbers of any size.
local now, now_high, now_low = clock(ARGV[1])
local holder, limit, channel = ARGV[2], tonumber(ARGV[3]), ARGV[5]
local leases, queue, first = KEYS[1], KEYS[2], 3
if holder == '' then first = 1 end

local lease_wait, free = 0, 0
if holder ~= '' then
  redis.call('ZREMRANGEBYSCORE', leases, '-inf', whole(now))
  local others = redis.call('ZCARD', leases)
  local is_mine = redis.call('ZSCORE', leases, holder)
  if is_mine then others = others - 1 end
  free = limit - others
  local since = now - (tonumber(ARGV[6]) or 0)
  local ahead = 0
  local waiting = redis.call('HGETALL', queue)
  for i = 1, #waiting, 2 do
    local its_since, its_end, count = string.match(waiting[i + 1], '^(%d+) (%d+) (%d+)$')
    its_since = tonumber(its_since)
    if tonumber(its_end) <= now then
      redis.call('HDEL', queue, waiting[i])
    elseif waiting[i] ~= holder and (its_since < since or (its_since == since and waiting[i] < holder)) then
      ahead = ahead + tonumber(count)
    end
  end
  if free <= 0 then
    -- Until enough of the others have ended by themselves.
    local end_of = redis.call('ZRANGE', leases, others - limit, others - limit + 1, 'WITHSCORES')
    local which = 2
    local rank = is_mine and redis.call('ZRANK', leases, holder)
    if rank and rank <= others - limit then which = 4 end
    lease_wait = tonumber(end_of[which]) - now
  elseif free <= ahead and not is_mine then
    lease_wait = tonumber(ARGV[8])
  end
end

local is_taken = lease_wait == 0
local before, after = {}, {}
for i = first, #KEYS do
  local key, at = KEYS[i], 9 + (i - first) * 4
  local high, low = load(key, now_high, now_low)
  before[#before + 1], before[#before + 2] = high, low
  if after[key] then high, low = after[key][1], after[key][2] end
  high, low = plus(high, low, tonumber(ARGV[at]), tonumber(ARGV[at + 1]))
  after[key] = {high, low}
  high, low = minus(high, low, now_high, now_low)
  if is_positive(minus(high, low, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]))) then is_taken = false end
end

if is_taken then
  for key, tat in pairs(after) do
    store(key, tat[1], tat[2], now_high, now_low)
  end
  if holder ~= '' then
    hold(leases, holder, now, tonumber(ARGV[4]))
    redis.call('HDEL', queue, holder)
    if free > 1 and redis.call('EXISTS', queue) == 1 then redis.call('PUBLISH', channel, leases) end
  end
elseif lease_wait > 0 and ARGV[6] ~= '' then
  local since, until_ = now - tonumber(ARGV[6]), now + tonumber(ARGV[8])
  redis.call('HSET', queue, holder, whole(since) .. ' ' .. whole(until_) .. ' ' .. ARGV[7])
  redis.call('PEXPIRE', queue, SLACK_MS)
end
for i = 1, #before do before[i] = whole(before[i]) end
return table.concat({is_taken and 1 or 0, whole(now), whole(lease_wait), unpack(before)}, ' ')
