"""Links outlive the secret that they were made under, while it is named as replaced."""

from __future__ import annotations

import pytest

from tenancy.services import links, members

pytestmark = pytest.mark.django_db


def test_links_and_invitations_stay_good_under_a_replaced_secret(acme, settings):
    link = links.mint_link(user=acme.owner).rstrip("/").rpartition("/")[2]
    _, address = members.invite_member(tenant=acme.tenant, email="new@x.example")
    invitation = address.rstrip("/").rpartition("/")[2]
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    assert links.find_link(token=link) is None
    assert members.find_invitation(token=invitation) is None
    settings.SECRET_KEY_FALLBACKS = ["something else", old]
    assert links.use_link(token=link) == acme.owner
    assert members.find_invitation(token=invitation).email == "new@x.example"
