"""Run on a migrated home: who may still come in, by the code of today. Prints one JSON object."""

from __future__ import annotations

import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django_scopes import scopes_disabled  # noqa: E402

from gateway.models import User  # noqa: E402
from gateway.services.keys import find_key  # noqa: E402


def main() -> None:
    facts = json.loads(sys.argv[1])
    operator = User.objects.get(email=facts["operator"])
    session = SessionStore(facts["session"])
    with scopes_disabled():
        answer = {
            "keys": [key.name for secret in (facts["key"], facts["revoked"]) for key in find_key(secret)],
            "is_revoked": [key.revoked_at is not None for key in find_key(facts["revoked"])],
            "is_signed_in": session.get("_auth_user_hash") == operator.get_session_auth_hash(),
        }
    print(json.dumps(answer))


main()
