"""The specialists for support desks: the questions that they learn from and are measured on.

Two generators (`corpus`, `inbox`) share nothing. `examples("train", seed)` of each is for training;
`examples("held_out", seed)` draws only on sentences, values, instructions and names that training never sees.
"""
