"""Repositories of the hub: a revision is found to be one commit, which alone is fetched; errors are told in our words.

The endpoint, the token and the cache are huggingface_hub's own (HF_ENDPOINT, HF_TOKEN, HF_HOME); no line of ours repeats them.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from routing.core.errors import InputError, RoutingError, StorageError

RepoType = Literal["model", "dataset"]
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubCommit:
    """One commit of one repository; `asked` is the revision that named it, None for the default branch."""

    name: str
    commit: str
    asked: str | None
    repo_type: RepoType

    @property
    def pinned(self) -> str:
        """The id that names this commit whatever moves."""
        return f"{self.name}@{self.commit}"


def pin_commit(name: str, asked: str | None, *, repo_type: RepoType) -> HubCommit:
    """The commit that a revision of the repository `name` is now.

    Asks the hub, or its cache where HF_HUB_OFFLINE is set; a whole commit hash needs neither. InputError where the id names
    nothing that can be had, StorageError where the hub can't be asked.
    """
    return HubCommit(name=name, commit=_commit_of(name, asked, repo_type), asked=asked, repo_type=repo_type)


def _commit_of(name: str, asked: str | None, repo_type: RepoType) -> str:
    if asked is not None and _COMMIT.fullmatch(asked):
        return asked
    from huggingface_hub import HfApi, constants, snapshot_download

    with _told(name, asked):
        if constants.HF_HUB_OFFLINE:
            return Path(snapshot_download(name, revision=asked, repo_type=repo_type, local_files_only=True)).name
        found = HfApi().repo_info(name, revision=asked, repo_type=repo_type).sha
    if found is None or not _COMMIT.fullmatch(found):
        raise StorageError(f"{name}: the hub names no commit of {asked or 'its default branch'}; is HF_ENDPOINT a hub?")
    return found


def fetch_files(one: HubCommit, *, wanted: Sequence[str] | None = None, unwanted: Sequence[str] | None = None) -> Path:
    """The folder in the cache that holds the commit's files, fetched where they aren't there; the errors of `pin_commit`.

    `wanted` and `unwanted` are patterns of names in the repository; without them it is taken whole.
    """
    from huggingface_hub import snapshot_download

    allow, ignore = (None if names is None else list(names) for names in (wanted, unwanted))
    with _told(one.name, one.commit):
        return Path(
            snapshot_download(
                one.name, revision=one.commit, repo_type=one.repo_type, allow_patterns=allow, ignore_patterns=ignore
            )
        )


def fetch_file(one: HubCommit, file: str) -> Path:
    """One file of the commit in the cache, fetched where it isn't there; the errors of `pin_commit`."""
    from huggingface_hub import errors, hf_hub_download

    with _told(one.name, one.commit):
        try:
            return Path(hf_hub_download(one.name, file, revision=one.commit, repo_type=one.repo_type))
        except errors.RemoteEntryNotFoundError:
            raise InputError(f"{one.name}: has no such file in commit {one.commit[:12]}") from None


@contextlib.contextmanager
def _told(name: str, revision: str | None) -> Iterator[None]:
    """The library's errors as ours, in our words: its own hold addresses, which may hold a password."""
    try:
        yield
    except RoutingError:
        raise
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
