"""The admin shows rules; they are changed on the operator's page, to which it leads."""

import pytest
from django.urls import reverse

from routing.models import RouteRule
from tests.control.operate.test_models import fake, operator, rule_to, text_of

__all__ = ["operator"]
pytestmark = pytest.mark.django_db


def test_rules_are_shown_with_their_ceilings_and_changed_elsewhere(operator):
    rule = rule_to(fake(), name="cheap", max_price=2_500_000, max_request_price=10_000, max_ttft_ms=800)
    listed = text_of(operator.get(reverse("admin:routing_routerule_changelist")))
    assert "at most 2.5 credits per million output tokens, 0.01 credits for the request, 800 ms" in listed
    row = reverse("admin:routing_routerule_change", args=[rule.pk])
    assert "small" in text_of(operator.get(row))
    assert operator.post(row, {"name": "mine"}).status_code == 403
    assert operator.get(reverse("admin:routing_routerule_add")).status_code == 403
    assert RouteRule.objects.get().name == "cheap"
    for name, args, leads in (("rules", [], "operate-routing"), ("edit", [rule.pk], "operate-rule")):
        assert operator.get(reverse(f"admin:routing_routerule_{name}", args=args)).url == reverse(leads, args=args)
