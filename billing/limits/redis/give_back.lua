-- KEYS: leases, who waits for one, then buckets. ARGV: clock, holder, channel, then what is taken from each bucket (two
-- numbers, negative when given back). Whoever waits is told that a lease may be had.
local _, now_high, now_low = clock(ARGV[1])
for i = 3, #KEYS do adjust(KEYS[i], ARGV[2 * i - 2], ARGV[2 * i - 1], now_high, now_low) end
local gone = redis.call('ZREM', KEYS[1], ARGV[2]) + redis.call('HDEL', KEYS[2], ARGV[2])
if gone > 0 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('PUBLISH', ARGV[3], KEYS[1]) end
