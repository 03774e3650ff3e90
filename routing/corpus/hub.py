"""Where a corpus argument lies: a path, or a data set of the hub, which is fetched once into the hub's own cache."""

import re
from pathlib import Path

from routing.core.errors import InputError
from routing.corpus.containers import check_readable
from routing.corpus.strict_json import escape, printable

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"({_WORD}/{_WORD})@({_WORD})(?:/(.+))?")


def located(given: str) -> Path:
    """The file or folder that `given` names: a path, `org/name@revision`, or a file of it, `org/name@revision/path`.

    Nothing of a data set is run: its files are read. InputError, StorageError for what isn't there, or can't be fetched.
    """
    path = Path(given)
    match = _HUB_ID.fullmatch(given)
    if match is None or ".." in path.parts or path.exists():
        check_readable(path, name=printable(given))
        return path
    name, revision, file = match.groups()
    location = _fetched(given, name, revision=revision, file=file)
    if file is not None:
        check_readable(location, name=printable(given))
    return location


def _fetched(given: str, name: str, *, revision: str, file: str | None) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        if file is not None:
            return Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))
        return Path(snapshot_download(name, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub, the network and the cache fail in kinds of their own
        told = escape(" ".join(str(error).split()), 120)
        raise InputError(f"{printable(given)}: no such file, and not fetched from the hub: {told}") from None
