"""Gateways, jobs and worker under one supervisor: starting, watching, replacing and ending them."""
