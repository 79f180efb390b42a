-- KEYS: leases. ARGV: clock, holder, ttl, and 1 to hold the lease even where it is not known (any more).
local now = clock(ARGV[1])
local known = redis.call('ZSCORE', KEYS[1], ARGV[2])
if ARGV[4] == '1' or (known and tonumber(known) > now) then hold(KEYS[1], ARGV[2], now, tonumber(ARGV[3])) end
