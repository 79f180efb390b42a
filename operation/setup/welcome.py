"""How to begin: the demo tenant's key, a sign-in link and a first call."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from operation.setup import demo
from routing.models import PublicModel
from tenancy.services import links


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a newcomer needs: where, with which key, how to sign in once, and which models there are."""

    base_url: str
    api_key: str
    sign_in_url: str
    models: list[str]


def welcome(base_url: str) -> Welcome:
    """Make what is missing of the demo tenant and mint a sign-in link for its operator."""
    made = demo.ensure_demo()
    models = list(PublicModel.objects.filter(is_active=True).values_list("name", flat=True))
    return Welcome(base_url, made.api_key, links.mint_link(user=made.user, base_url=base_url), models)


def told(facts: Welcome) -> str:
    """Return `facts` for people."""
    call = (
        ""
        if not facts.models
        else f"""
  curl {facts.base_url}/v1/chat/completions \\
    -H "Authorization: Bearer {facts.api_key}" -H "Content-Type: application/json" \\
    -d '{{"model": "auto", "max_tokens": 100, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""
    )
    return f"""
Sluice is set up in {settings.SLUICE_HOME}
  models    {", ".join(facts.models) or "none yet: manage.py models add <hub id | folder | GGUF file>"}
  API key   {facts.api_key}
  sign in   {facts.sign_in_url}
            (once, within 15 minutes; `manage.py quickstart` gives another)
{call}"""
