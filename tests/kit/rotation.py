"""Do what the arguments name with the settings of one step of a rotation, in their order: ``setup`` as ``manage.py``
does, ``make`` what outlives it, or look what is still valid of what was made, which the argument tells.
"""

from __future__ import annotations

import json
import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

from django.contrib.auth import get_user, login  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.http import HttpRequest  # noqa: E402
from django_scopes import scopes_disabled  # noqa: E402

from base.sealing import SealError, seal, unseal  # noqa: E402
from routing.services.catalogue import add_model  # noqa: E402
from tenancy.models import Project, Tenant, User  # noqa: E402
from tenancy.services import keys, links  # noqa: E402


def request_with(session: SessionStore) -> HttpRequest:
    request = HttpRequest()
    request.session = session
    request.META["REMOTE_ADDR"] = "127.0.0.1"
    return request


def make() -> dict[str, str]:
    user = User.objects.create_superuser(email="operator@example.com", password="not-rotated-1")
    request = request_with(SessionStore())
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    request.session.save()
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    project = Project(tenant=tenant, name="Default")
    project.save(force_insert=True)
    _, secret = keys.create_key(tenant=tenant, project=project, name="kept")
    row = add_model(name="remote", kinds=["chat"], context_length=8, rate_card="remote", source="fake", options={})
    row.credential = seal("sk-of-the-endpoint")
    row.save(update_fields=["credential"])
    link = links.mint_link(user=user).rstrip("/").rsplit("/", 1)[1]
    return {"session": str(request.session.session_key), "key": secret, "link": link, "deployment": str(row.pk)}


def look(made: dict[str, str]) -> dict[str, object]:
    from routing.models import Deployment

    session = SessionStore(made["session"])
    is_signed_in = get_user(request_with(session)).is_authenticated
    session.save()  # as the middleware does, which gives the browser the new key
    try:
        credential = unseal(Deployment.objects.get(pk=made["deployment"]).credential)
    except SealError:
        credential = ""
    with scopes_disabled():
        is_key_valid = keys.find_key(made["key"]).exists()
    return {
        "cookie": session.session_key,
        "session": is_signed_in,
        "key": is_key_valid,
        "link": links.find_link(token=made["link"]) is not None,
        "credential": credential == "sk-of-the-endpoint",
    }


said = None
for step in sys.argv[1:]:
    if step == "setup":
        call_command(step)
    else:
        said = make() if step == "make" else look(json.loads(step))
print(json.dumps(said))
