"""The data plane's APIs, a room each: `endpoint` is what asgi.py routes to, `wire` its fields and answers."""
