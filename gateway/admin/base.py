"""What gateway's admins share."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from unfold.admin import ModelAdmin

from gateway.errors.service import ServiceError


class KeptAdmin(ModelAdmin):
    """Rows that are deactivated, never deleted; what a service refuses is shown above the form."""

    show_full_result_count = False
    compressed_fields = True

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes: books refer to these rows."""
        return False

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        """Answer with the form again and the reason where a service refused."""
        try:
            response: HttpResponse = super().changeform_view(request, *args, **options)
        except ServiceError as refused:
            messages.error(request, refused.message)
            return HttpResponseRedirect(request.get_full_path())
        return response
