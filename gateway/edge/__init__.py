"""The data plane: plain ASGI endpoints and wire formats."""
