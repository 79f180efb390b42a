"""What `doctor` finds of this machine's models."""

from __future__ import annotations

import pytest

from operation.doctor import doctor
from routing.models import Deployment
from routing.services.catalogue import add_model, remove_model, set_alias


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


@pytest.mark.django_db
def test_aliases_that_mean_nothing_or_that_a_model_covers_are_told(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    for name in ("sound", "gone"):
        add_model(name=name, kinds=["chat"], context_length=512, rate_card="card", source=str(tmp_path))
    for name, target in (("gpt-4o", "sound"), ("gpt-4", "auto"), ("gpt-5", "gone"), ("covered", "sound")):
        set_alias(name, target)
    remove_model("gone")
    add_model(name="covered", kinds=["chat"], context_length=512, rate_card="card", source=str(tmp_path))
    found = {symptom.subject: symptom for symptom in doctor._catalogue() if symptom.subject.startswith("alias")}
    assert {subject: symptom.finding.partition(":")[0] for subject, symptom in found.items()} == {
        "alias gpt-5": "there is no model gone",
        "alias covered": "covered is a model already",
    }
    assert not any(symptom.is_fine for symptom in found.values())
