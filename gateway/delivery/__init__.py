"""What became of an answer: how each generation behind it ended, and whether it was delivered."""
