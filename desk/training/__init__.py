"""The specialist for support desks: the corpus that it learns from and is measured on.

`corpus.examples("train", seed)` is for training. `corpus.examples("held_out", seed)` draws only on sentences, names,
instructions and labels that training never sees.
"""
