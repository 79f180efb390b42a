"""HTTP to our own addresses: never through a proxy of the environment, which may not reach them."""

from __future__ import annotations

from urllib.request import BaseHandler, OpenerDirector, ProxyHandler, build_opener  # noqa: TID251 - the only one


def direct_opener(*handlers: BaseHandler) -> OpenerDirector:
    """Return an opener that uses no proxy, with further `handlers`."""
    return build_opener(ProxyHandler({}), *handlers)


open_directly = direct_opener().open
