"""Rate limits: GCRA buckets and concurrency leases behind one store."""
