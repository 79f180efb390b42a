"""Setting up an installation, and the first words to who did."""
