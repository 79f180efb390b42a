-- KEYS: a bucket. ARGV: clock, and what is taken from it (two numbers, negative when given back).
local _, now_high, now_low = clock(ARGV[1])
local high, low = load(KEYS[1], now_high, now_low)
high, low = plus(high, low, tonumber(ARGV[2]), tonumber(ARGV[3]))
store(KEYS[1], high, low, now_high, now_low)
