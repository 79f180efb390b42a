-- KEYS: a bucket. ARGV: clock, and what is taken from it (two numbers, negative when given back).
local _, now_high, now_low = clock(ARGV[1])
adjust(KEYS[1], ARGV[2], ARGV[3], now_high, now_low)
