"""The server in front of both planes: uvicorn, with a bound on everything that a client can make it hold.

Heads (bytes, seconds), idle connections, connections in all and by address, bytes of a body on the wire, readers that
stop reading. What a bound refuses is answered in the data plane's own shape where an answer is still possible; how
large and slow a body may be is `gateway.http.bounds`'s, which knows the request. docs/settings.md lists the bounds.
"""
