"""The documents inside the product: guides and concepts from `docs/`, and the API's reference from its declarations."""
