"""Models and their adapters, nodes and workers, remote engines, as operators add them."""
