"""``manage.py quickstart``: from nothing to a gateway that can be served, as often as wanted."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.errors.service import ServiceError
from gateway.services import demo, links, local_models
from routing.models import PublicModel


class Command(BaseCommand):
    """Do what `setup` does, install the first models, make the demo tenant; print how to begin."""

    help = "Set everything up for a first run (idempotent)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=None, help="the port that `serve` will listen on")
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.SLUICE_ENV == "production":
            raise CommandError(
                "quickstart makes demo credentials: in production use setup, createsuperuser, models add"
            )
        quiet = options["json"]
        call_command("setup", verbosity=0)
        self._models(sys.stderr if quiet else self.stdout)
        made = demo.ensure_demo()
        base_url = f"http://127.0.0.1:{options['port']}" if options["port"] else settings.SLUICE_BASE_URL
        sign_in = links.mint_link(user=made.user, base_url=base_url)
        models = list(PublicModel.objects.filter(is_active=True).values_list("name", flat=True))
        if quiet:
            facts = {"base_url": base_url, "api_key": made.api_key, "sign_in_url": sign_in, "models": models}
            self.stdout.write(json.dumps(facts))
            return
        self.stdout.write(_welcome(base_url, made.api_key, sign_in, models))

    def _models(self, out: Any) -> None:
        try:
            first = local_models.add_first_models()
        except ServiceError as error:
            out.write(f"first models: {error}\n")
            return
        for name, why in first.missing.items():
            out.write(f"first model {name} is missing: {why}\n")


def _welcome(base_url: str, api_key: str, sign_in: str, models: list[str]) -> str:
    call = (
        ""
        if not models
        else f"""
Try it, once it says "ready":

  curl {base_url}/v1/chat/completions \\
    -H "Authorization: Bearer {api_key}" -H "Content-Type: application/json" \\
    -d '{{"model": "auto", "max_tokens": 100, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'
"""
    )
    return f"""
Sluice is set up in {settings.SLUICE_HOME}
  models    {", ".join(models) or "none yet: manage.py models add <hub id | folder | GGUF file>"}
  API key   {api_key}
  sign in   {sign_in}
            (once, within 15 minutes; `manage.py quickstart` gives another)
{call}"""
