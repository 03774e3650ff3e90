"""What every verb that cuts batches asks for where nobody says, for those that must not wait for NumPy."""

BATCH_SIZES = (200_000, 20_000, 2_000)  # tokens, largest first
