"""The address of Redis as Celery's broker reads it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit


def broker_url(address: str) -> str:
    """Return what `address`, which redis-py reads, is for kombu.

    kombu has another scheme for sockets, takes the database from the path alone, and checks a server's certificate
    only where it is told to.
    """
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    database = query.pop("db", "")
    if parts.scheme == "unix":
        return f"redis+socket://{parts.netloc}{parts.path}?{urlencode({'virtual_host': database or '0'})}"
    if parts.scheme == "rediss":
        query.setdefault("ssl_cert_reqs", "required")
    path = f"/{database}" if database else parts.path
    return urlunsplit(parts._replace(path=path, query=urlencode(query)))
