"""What every verb that cuts batches means by its usual sizes and its views, for those that must not wait for NumPy."""

from routing.core.errors import InputError

BATCH_SIZES = (200_000, 20_000, 2_000)  # tokens, largest first; what is asked where nobody says
VIEWS = ("packed", "logical")


def require_view(view: str, *, name: str = "--view") -> None:
    """InputError where `view` is none; `name` is the flag or argument that held it."""
    if view not in VIEWS:
        raise InputError(f"{name}: {view!r:.40} is neither {' nor '.join(VIEWS)}")
