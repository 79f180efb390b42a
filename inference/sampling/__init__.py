"""Sampling: everything behind the logits. Processors, filters, the draw with counter-based noise, log-probabilities.

    logits ─▶ guidance ─▶ bias ─▶ allowed tokens ─▶ banned ends ─▶ penalties
       │                                                             └─▶ temperature ─▶ top-k ─▶ top-p ─▶ min-p ─▶ token
       └─▶ log-probabilities, of the logits as the model gave them

What a row's parameters need is written to tensors once, when it is admitted (`state`); a step skips every part that
none of its rows uses.
"""
