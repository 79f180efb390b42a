"""Wire formats: msgspec structs of what clients send and what we answer, and the way from one to the other."""
