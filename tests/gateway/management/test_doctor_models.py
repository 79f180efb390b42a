"""What `doctor` finds of this machine's models."""

from __future__ import annotations

import pytest

from gateway.management import doctor
from routing.models import Deployment
from routing.services.catalogue import add_model


@pytest.mark.django_db
def test_a_deployment_whose_options_cannot_be_meant_is_told_beside_the_others(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    add_model(name="sound", kinds=["chat"], context_length=512, rate_card="card", source=str(tmp_path))
    wrong = add_model(name="wrong", kinds=["chat"], context_length=512, rate_card="card", source=str(tmp_path))
    Deployment.objects.filter(id=wrong.id).update(options={"tier": "c"})
    found = {symptom.subject: symptom for symptom in doctor._catalogue()}
    assert found["models"].finding.startswith("deployment wrong: there is no option 'tier'")
    assert not found["models"].is_fine
    assert found["model sound"].is_fine
