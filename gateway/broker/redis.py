"""The address of Redis as Celery's broker reads it."""

from __future__ import annotations

from urllib.parse import parse_qs, quote, urlencode, urlsplit, urlunsplit


def broker_url(address: str) -> str:
    """Return what `address`, which redis-py reads, is for kombu.

    kombu has another scheme for sockets, takes the database from the path alone and who asks from before the host
    alone, and checks a server's certificate only where it is told to. Other options are for redis-py's own clients.
    """
    parts = urlsplit(address)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    database = query.get("db", "")
    server = parts.netloc.rpartition("@")[2]
    # As redis-py does: what stands before the host comes before what the query says.
    user = parts.username or quote(query.get("username", ""), safe="")
    password = parts.password or quote(query.get("password", ""), safe="")
    netloc = f"{user}:{password}@{server}" if user or password else server
    if parts.scheme == "unix":
        return f"redis+socket://{netloc}{parts.path}?{urlencode({'virtual_host': database or '0'})}"
    options = {name: value for name, value in query.items() if name.startswith("ssl_")}
    if parts.scheme == "rediss":
        options.setdefault("ssl_cert_reqs", "required")
    path = f"/{database}" if database else parts.path
    return urlunsplit(parts._replace(netloc=netloc, path=path, query=urlencode(options)))
