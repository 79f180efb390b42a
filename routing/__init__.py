"""The model catalogue, and the choice of the deployment that serves a request, with its reasons."""
