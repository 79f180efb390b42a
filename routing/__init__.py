"""From a request to the deployment that serves it, explained."""
