"""Access to Sluice: tenants, projects, people, keys and scopes, the audit trail, mail to people."""
