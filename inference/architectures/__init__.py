"""Models: own decoder, any transformers causal LM, encoders, and how weights are found."""
