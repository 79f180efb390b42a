"""The worker process: sessions with gateways, loading, the step loop, the record."""
