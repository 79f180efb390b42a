"""Models: our own decoder, transformers' causal models, encoders, the fake one; loading and proving them."""
