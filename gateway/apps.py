"""The gateway app."""

from __future__ import annotations

from django.apps import AppConfig, apps
from django.conf import settings
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate

from billing import triggers


class GatewayConfig(AppConfig):
    """The Django app of the gateway."""

    name = "gateway"
    verbose_name = "Tenants"  # as the admin calls the part of its tables
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Install the epoch's triggers after each migrate or flush, and register checks and the audit trail."""
        from base.database.connections import limit_migration, restore_limits
        from gateway import checks  # noqa: F401 - checks registers itself
        from gateway.runtime import epoch_triggers
        from tenancy.audit import sign_ins, tracked, trail
        from tenancy.services import notices

        pre_migrate.connect(limit_migration, sender=self, dispatch_uid="gateway.limit_migration")
        pre_migrate.connect(epoch_triggers.drop_before_migrate, sender=self, dispatch_uid="gateway.drop_epoch_triggers")
        post_migrate.connect(epoch_triggers.install_after_migrate, sender=self, dispatch_uid="gateway.epoch_triggers")
        # Only the last app's signal finds the triggers of all in place.
        last = [app for app in apps.get_app_configs() if app.models_module is not None][-1]
        post_migrate.connect(restore_limits, sender=last, dispatch_uid="gateway.restore_limits")
        if settings.REDIS_URL:
            from gateway.runtime.hints import hint_after_writes

            connection_created.connect(hint_after_writes, dispatch_uid="gateway.hints")
        triggers.guard(trail.GUARD)
        tracked.connect()
        sign_ins.connect()
        notices.connect()
