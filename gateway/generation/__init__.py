"""One request from admission to settlement."""
