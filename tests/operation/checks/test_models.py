"""What the checks of models and aliases find."""

from __future__ import annotations

import pytest

from operation.checks import catalogue
from routing.models import Deployment
from routing.services.catalogue import add_model, remove_model, set_alias


@pytest.mark.django_db
def test_a_deployment_whose_options_cannot_be_meant_is_told_beside_the_others(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    add_model(name="sound", kinds=["chat"], context_length=512, rate_card="card", source=str(tmp_path))
    wrong = add_model(name="wrong", kinds=["chat"], context_length=512, rate_card="card", source=str(tmp_path))
    Deployment.objects.filter(id=wrong.id).update(options={"tier": "c"})
    found = {finding.subject: finding for finding in catalogue._models(None)}
    assert found[""].text.startswith("deployment wrong: there is no option 'tier'")
    assert not found[""].is_fine
    assert found["sound"].is_fine


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
    found = list(catalogue._aliases(None))
    assert {finding.subject: finding.text.partition(":")[0] for finding in found} == {
        "gpt-5": "there is no model gone",
        "covered": "covered is a model already",
    }
    assert not any(finding.is_fine for finding in found)
