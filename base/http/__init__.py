"""Below every API: ASGI's types and messages, server-sent events, a client that leaves."""
