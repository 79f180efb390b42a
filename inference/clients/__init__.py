"""The gateway's end of each kind of engine."""
