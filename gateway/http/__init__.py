"""In front of every API: the listener, the guard, who asks, bounds, answers kept under a key."""
