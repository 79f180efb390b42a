"""What HTTP means to a server, below every API: ASGI's types and messages, server-sent events."""
