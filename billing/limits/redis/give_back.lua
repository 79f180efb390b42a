-- KEYS: leases, and who waits for one. ARGV: holder, channel. Whoever waits is told that a lease may be had.
local gone = redis.call('ZREM', KEYS[1], ARGV[1]) + redis.call('HDEL', KEYS[2], ARGV[1])
if gone > 0 and redis.call('EXISTS', KEYS[2]) == 1 then redis.call('PUBLISH', ARGV[2], KEYS[1]) end
