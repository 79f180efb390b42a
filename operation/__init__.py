"""Operation: commands and what they do: serving, periodic work, checks, setting up, backup."""
