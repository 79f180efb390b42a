"""Who may use Sluice and what: tenants, projects, people, keys and scopes, the audit trail, mail to people."""
