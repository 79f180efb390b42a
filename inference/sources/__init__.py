"""How a model gets here: folder, GGUF file, hub id, first models."""
