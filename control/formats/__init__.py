"""How dates and numbers are written where Django formats them."""
