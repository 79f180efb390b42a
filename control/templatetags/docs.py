"""Filters of the documents' templates."""

from __future__ import annotations

from django import template
from django.utils.safestring import SafeString

from control.docs.markdown import inline

register = template.Library()


@register.filter
def markdown(text: str) -> SafeString:
    """Return a line of Markdown as HTML."""
    return inline(text)
