"""The rate store of several gateways: buckets and leases in Redis, changed by scripts that Redis runs in one step."""
