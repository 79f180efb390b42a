"""The operator's pages, at /operate/."""
