"""Websocket consumers."""
