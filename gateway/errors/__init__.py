"""Errors: of services, of requests (`Refusal`), and of engines."""
