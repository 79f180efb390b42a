"""Run in the stack's home: how many leases the rate store in Redis holds that haven't ended. Prints one JSON object."""

from __future__ import annotations

import json
import os
import time

import django
import redis

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.conf import settings  # noqa: E402

from billing.limits.redis.store import PREFIX  # noqa: E402


def main() -> None:
    held = {}
    with redis.Redis.from_url(settings.REDIS_URL) as server:
        for key in server.scan_iter(f"{PREFIX}*"):
            if server.type(key) == b"zset" and not key.startswith(f"{PREFIX}celery:".encode()):
                if count := server.zcount(key, time.time() * 1e6, "+inf"):
                    held[key.decode()] = count
            elif key.endswith(b":waiting"):
                held[key.decode()] = server.hlen(key)
    print(json.dumps({"held": sum(held.values()), "keys": held}))


main()
