"""How unevenly Mixture-of-Experts models route real tokens, and the memory that a training run must allow for it."""
