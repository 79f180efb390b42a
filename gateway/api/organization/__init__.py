"""OpenAI's administration API over one tenant: docs/decisions/0014-tenant-as-organization.md."""
