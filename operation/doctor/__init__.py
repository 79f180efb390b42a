"""What is wrong with an installation, and the way out."""
