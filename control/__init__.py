"""The control plane: every page (operator's, tenant's, chat, account pages), the management API, Django's admin."""
