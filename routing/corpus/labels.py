"""The names that rows carry: task ids and domains, fit to be shown, with no prose in them."""

import hashlib
from collections.abc import Mapping

LABEL_KEYS = ("task_id", "domain")
MAX_LABEL_CHARS = 512  # the task ids of tau2 telecom spell out every fault and pass 200
MAX_NAME_CHARS = 64  # of a name with blanks in it; longer, it is prose, which is somebody's


def read_labels(row: Mapping[str, object]) -> tuple[str | None, str | None]:
    """(task id, domain) as any row may carry them."""
    return task_label(row.get("task_id")), label(row.get("domain"))


def task_label(value: object) -> str | None:
    """The same of a task's id, which may be a number."""
    if isinstance(value, float) and value.is_integer():  # pandas turns a column with gaps into floats
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return label(value)


def label(value: object) -> str | None:
    """A name from a file, printable on one line and no prose, else its hash; None where there is none."""
    if not isinstance(value, str) or not (name := value.strip()):
        return None
    if len(name) <= (MAX_NAME_CHARS if " " in name else MAX_LABEL_CHARS) and name.isprintable():
        return name
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
