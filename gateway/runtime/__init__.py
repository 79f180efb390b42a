"""The open resources of one gateway process: principals, snapshot, engines, locks, metrics."""
