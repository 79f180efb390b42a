"""The worker process: gateways' sessions, the step loop, the record, loading and withdrawing of models."""
