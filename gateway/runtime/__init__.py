"""What one gateway process keeps open while it serves."""
