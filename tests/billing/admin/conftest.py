"""The pages of billing without the site's sidebar, which is another's, with queries of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_sidebar(settings):
    settings.UNFOLD = {**getattr(settings, "UNFOLD", {}), "SIDEBAR": {}}
