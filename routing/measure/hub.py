"""Policies by hub id: one commit is pinned, and of it safetensors and text files alone are fetched."""

import os
from pathlib import Path

from routing.core.errors import InputError
from routing.store.hub import HubCommit, fetch_files, pin_commit

_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
_IN_FOLDERS = "*/*"  # where repositories keep copies in other formats


def pin(policy: str, *, revision: str | None = None) -> HubCommit | None:
    """The commit that a hub id (`org/name` or `org/name@revision`) names now; None for a folder, which has no revisions.

    The errors of `pin_commit`, and InputError for what is neither.
    """
    if os.path.isdir(policy):
        if revision is not None:
            raise InputError(f"--revision: {policy} is a folder, which has no revisions; leave it out")
        return None
    if policy.count("/") != 1 or policy.startswith((".", "/", "~")) or os.path.exists(policy):
        raise InputError(f"{policy}: no folder, and no hub id (org/name or org/name@revision)")
    name, mark, inside = policy.partition("@")
    if mark and revision is not None:
        raise InputError(f"--revision: {policy} names one already; give one of the two")
    asked = inside if mark else revision
    if asked == "":
        raise InputError(f"{policy}: an empty revision; name a branch, a tag or a commit, or leave it out")
    return pin_commit(name, asked, repo_type="model")


def fetch(one: HubCommit) -> Path:
    """The folder in the cache that holds the policy's files, fetched where they aren't there; the errors of `pin_commit`."""
    return fetch_files(one, wanted=_WANTED, unwanted=(_IN_FOLDERS,))
