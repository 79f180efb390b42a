"""Operation: commands and what they do: serving, periodic work, doctor, setting up, backup."""
