"""The operator's pages: one object, one page."""

from __future__ import annotations

from django.urls import path

from control.operate import model_wizard, models, now, plans, prices, routing

urlpatterns = [
    path("", now.now, name="operate-now"),
    path("models/", models.models, name="operate-models"),
    path("models/new/", model_wizard.new, name="operate-model-new"),
    path("models/new/remote/", model_wizard.new_remote, name="operate-model-new-remote"),
    path("models/new/fetch/<uuid:pk>/", model_wizard.fetch, name="operate-model-fetch"),
    path("models/new/<uuid:pk>/proof/", model_wizard.proof, name="operate-model-proof"),
    path("models/new/<uuid:pk>/price/", model_wizard.price, name="operate-model-price"),
    path("models/new/<uuid:pk>/plans/", model_wizard.plans, name="operate-model-plans"),
    path("models/new/<uuid:pk>/rules/", model_wizard.rules, name="operate-model-rules"),
    path("models/new/<uuid:pk>/live/", model_wizard.live, name="operate-model-live"),
    path("models/<uuid:pk>/", models.model, name="operate-model"),
    path("models/<uuid:pk>/edit/", models.edit, name="operate-model-edit"),
    path("models/<uuid:pk>/withdraw/", models.withdrawal, name="operate-model-withdraw"),
    path("prices/", prices.prices, name="operate-prices"),
    path("prices/new/", prices.new_list, name="operate-price-list-new"),
    path("prices/<path:name>/new/", prices.publish, name="operate-price-new"),
    path("prices/<path:name>/", prices.price, name="operate-price"),
    path("plans/", plans.listing, name="operate-plans"),
    path("plans/new/", plans.new, name="operate-plan-new"),
    path("plans/<slug:slug>/", plans.plan, name="operate-plan"),
    path("plans/<slug:slug>/edit/", plans.edit, name="operate-plan-edit"),
    path("plans/<slug:slug>/terms/", plans.publish, name="operate-plan-publish"),
    path("plans/<slug:slug>/move/", plans.move, name="operate-plan-move"),
    path("routing/", routing.routing, name="operate-routing"),
    path("routing/new/", routing.new, name="operate-rule-new"),
    path("routing/<uuid:pk>/", routing.rule, name="operate-rule"),
    path("routing/<uuid:pk>/place/", routing.place, name="operate-rule-place"),
    path("routing/<uuid:pk>/switch/", routing.switch, name="operate-rule-switch"),
    path("routing/<uuid:pk>/delete/", routing.delete, name="operate-rule-delete"),
]
