"""Speculation: tokens proposed before the model computes them, and kept where it would have chosen them."""
