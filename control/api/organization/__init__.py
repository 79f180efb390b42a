"""OpenAI's administration API over one tenant: docs/decisions/0015-tenant-as-organization.md."""
