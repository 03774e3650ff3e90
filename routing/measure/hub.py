"""Policies by hub id: a revision is resolved to a commit once, and that commit alone is fetched, safetensors and text files only.

The endpoint, the token and the cache are huggingface_hub's own (HF_ENDPOINT, HF_TOKEN, HF_HOME); no line of ours repeats them.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from routing.core.errors import InputError, RoutingError, StorageError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
_IN_FOLDERS = "*/*"  # where repositories keep copies in other formats


@dataclass(frozen=True, kw_only=True, slots=True)
class HubCommit:
    """One commit of one repository; `asked` is the revision that named it, None for the default branch."""

    name: str
    commit: str
    asked: str | None

    @property
    def policy(self) -> str:
        """The id that names this commit whatever moves."""
        return f"{self.name}@{self.commit}"


def pin(policy: str, *, revision: str | None = None) -> HubCommit | None:
    """The commit that a hub id (`org/name` or `org/name@revision`) names now; None for a folder, which has no revisions.

    Asks the hub, or its cache where HF_HUB_OFFLINE is set; a whole commit hash needs neither. InputError where the id names
    nothing that can be had, StorageError where the hub can't be asked.
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
    return HubCommit(name=name, commit=_commit_of(name, asked), asked=asked)


def _commit_of(name: str, asked: str | None) -> str:
    if asked is not None and _COMMIT.fullmatch(asked):
        return asked
    from huggingface_hub import HfApi, constants, snapshot_download

    with _told(name, asked):
        if constants.HF_HUB_OFFLINE:
            return Path(snapshot_download(name, revision=asked, local_files_only=True)).name
        found = HfApi().model_info(name, revision=asked).sha
    if found is None or not _COMMIT.fullmatch(found):
        raise StorageError(f"{name}: the hub names no commit of {asked or 'its default branch'}; is HF_ENDPOINT a hub?")
    return found


def fetch(one: HubCommit) -> Path:
    """The folder in the cache that holds the commit's files, fetched where they aren't there; the errors of `pin`."""
    from huggingface_hub import snapshot_download

    with _told(one.name, one.commit):
        return Path(snapshot_download(one.name, revision=one.commit, allow_patterns=list(_WANTED), ignore_patterns=[_IN_FOLDERS]))


@contextlib.contextmanager
def _told(name: str, revision: str | None) -> Iterator[None]:
    """The library's errors as ours, in our words: its own hold addresses, which may hold a password."""
    try:
        yield
    except Exception as error:
        raise _said(error, name, revision or "the default branch") from error


def _said(error: Exception, name: str, revision: str) -> RoutingError:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what kept it from being fetched
    if isinstance(error, errors.HFValidationError):
        return InputError(f"{name[:100]!a}: no hub id (org/name or org/name@revision)")
    if isinstance(error, errors.GatedRepoError):
        return InputError(f"{name}: gated; ask for access on its page, then set HF_TOKEN to a token of yours")
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(f"{name}: not on the hub, or private; check the name, or set HF_TOKEN to a token that may read it")
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{name}: has no revision {revision[:100]!a}; name a branch, a tag or a commit")
    if constants.HF_HUB_OFFLINE:
        return InputError(
            f"{name}: {revision[:100]} is not in the cache and HF_HUB_OFFLINE is set; unset it, or name a commit fetched before"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return InputError(f"{name}: the hub refuses it ({error.response.status_code}); set HF_TOKEN to a token that may read it")
    if isinstance(error, errors.HfHubHTTPError):
        why = f"the hub answered {error.response.status_code}"
    else:
        why = getattr(error, "strerror", None) or f"the hub can't be reached ({type(error).__name__})"
    return StorageError(f"{name}: not fetched, {why}; the same command tries again, HF_HUB_OFFLINE=1 takes what is in the cache")
