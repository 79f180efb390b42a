"""Optional: reads English instructions for routing, and has the support desk's specialists with their training."""
