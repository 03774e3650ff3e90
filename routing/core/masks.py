"""Attention masks beside token ids: which ids are tokens and which are padding."""


def kept_places(mask: object, num_ids: int) -> list[bool]:
    """Whether each of `num_ids` ids is a token: 1 (or true) in the list `mask`, where 0 is padding.

    ValueError, in words for the user, where `mask` is anything else: an additive mask, for one, holds 0 where the token is kept.
    """
    if not isinstance(mask, list) or len(mask) != num_ids or not all(bit in (0, 1) for bit in mask):
        raise ValueError(f"attention_mask is not {num_ids} zeros and ones")
    return [bool(bit) for bit in mask]
