"""The gateway: tenancy, API keys, data plane, management API, consoles; also the Django project."""
