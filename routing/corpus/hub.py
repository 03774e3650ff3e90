"""Where a corpus argument lies: a path, or a data set of the hub, one commit of which is fetched into the hub's own cache."""

import re
from pathlib import Path

from routing.core.errors import RoutingError
from routing.corpus.containers import check_readable
from routing.corpus.strict_json import printable
from routing.store.hub import fetch_file, fetch_files, pin_commit

_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_ID = re.compile(rf"({_WORD}/{_WORD})@({_WORD})(?:/(.+))?")


def located(given: str) -> Path:
    """The file or folder that `given` names: a path, `org/name@revision`, or a file of it, `org/name@revision/path`.

    A revision is one commit, found once; nothing of a data set is run, its files are read. InputError for what isn't there,
    StorageError for what can't be read or fetched.
    """
    path = Path(given)
    match = _HUB_ID.fullmatch(given)
    if match is None or ".." in path.parts or path.exists():
        check_readable(path, name=printable(given))
        return path
    name, revision, file = match.groups()
    try:
        one = pin_commit(name, revision, repo_type="dataset")
        location = fetch_files(one) if file is None else fetch_file(one, file)
    except RoutingError as error:
        raise type(error)(f"{printable(given)}: no such file, and not fetched from the hub: {error}") from error
    if file is not None:
        check_readable(location, name=printable(given))
    return location
