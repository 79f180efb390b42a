"""The implementations of `inference.engine.Engine`, one for each backend."""
