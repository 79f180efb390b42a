"""The worker process: protocol, loop, record, supervision-side client (DESIGN §4)."""
