"""Files that ship with the package: in `routing/_data` of an installed wheel, in place in a checkout."""

from importlib.resources import files
from pathlib import Path

from routing.core.errors import StorageError


def packaged(name: str) -> Path:
    """The file or folder that `name` stands for, as `allowances.yaml` or `models`; StorageError where the install lacks it."""
    package = Path(str(files("routing")))
    checkout = package.parent
    places = [package / "_data" / name]
    if (checkout / "pyproject.toml").is_file():
        places += [checkout / name, checkout / "data" / name]
    for place in places:
        if place.exists():
            return place
    raise StorageError(f"{places[0]}: not there; this install of routing lacks {name}")
