"""What one request used and cost."""
