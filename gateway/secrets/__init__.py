"""What is made, sealed and kept secret: keys shown once, the keys of nodes and gateways, stored credentials."""
