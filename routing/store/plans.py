"""Refresh plans: read strictly, their paths found and their patterns spelled out, before anything slow begins.

Relative paths start at the root of the plan's checkout: the nearest folder at or above the plan's own that holds `.git`; where
none does, at the plan's own folder.
"""

import glob
import os
from dataclasses import replace
from pathlib import Path

from routing.core.errors import InputError
from routing.core.fields import FieldPath
from routing.core.refresh_plan import PlannedRun, RefreshPlan
from routing.store.files import read_text
from routing.store.records import decode_record, field_error
from routing.store.run import require_run_name
from routing.store.yaml_nodes import Node, read_nodes

MAX_BYTES = 1_000_000


def read_plan(path: str | os.PathLike[str]) -> RefreshPlan:
    """The plan in `path`, every path in it as this process can open it and every pattern as the files it matches, sorted.

    InputError with line and field for what is no plan, a missing file or policy, a pattern without a match, a file twice;
    StorageError where reading fails. The table and the run folders need not exist yet.
    """
    where = str(path)
    missing = "pipelines/retail.yaml is one to start from"
    root = read_nodes(read_text(Path(path), what="a plan", max_bytes=MAX_BYTES, missing=missing), where=where)
    plan = decode_record(RefreshPlan, root, where=where)
    assert isinstance(plan, RefreshPlan)
    return _Finder(root, where, start_of(Path(path))).found(plan)


def start_of(plan: Path) -> Path:
    """Where the plan's relative paths start; relative to the current folder where it is inside it, else absolute."""
    folder = plan.resolve().parent
    start = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    here = Path.cwd()
    return start.relative_to(here) if start.is_relative_to(here) else start


class _Finder:
    def __init__(self, root: Node, where: str, start: Path) -> None:
        self.root, self.where, self.start = root, where, start

    def found(self, plan: RefreshPlan) -> RefreshPlan:
        runs = tuple(self.run(run, ("runs", place)) for place, run in enumerate(plan.runs))
        folders = [os.path.realpath(run.out) for run in runs]
        for place, folder in enumerate(folders):
            if folder in folders[:place]:
                raise self.error(("runs", place, "out"), f"the folder of runs[{folders.index(folder)}] under another name")
        return replace(plan, table=str(self.start / plan.table), runs=runs)

    def run(self, run: PlannedRun, path: FieldPath) -> PlannedRun:
        out = self.start / run.out
        try:
            require_run_name(out)
        except InputError as error:
            raise self.error((*path, "out"), str(error)) from error
        tokenizer = run.tokenizer
        if tokenizer is not None:
            tokenizer = str(self.start / tokenizer)
            if not os.path.isdir(tokenizer):
                raise self.error((*path, "tokenizer"), f"{tokenizer}: no such folder")
        policy, corpus = self.policy(run.policy, path), self.files(run.corpus, (*path, "corpus"))
        return replace(run, out=str(out), policy=policy, corpus=corpus, tokenizer=tokenizer)

    def policy(self, policy: str, path: FieldPath) -> str:
        """The folder from where paths start, else a hub id as it stands."""
        folder = self.start / policy
        if folder.is_dir():
            return str(folder)
        if policy.count("/") != 1 or policy.startswith((".", "/", "~")) or folder.exists() or os.path.exists(policy):
            raise self.error((*path, "policy"), f"{folder}: no folder, and no hub id (org/name or org/name@revision)")
        return policy

    def files(self, patterns: tuple[str, ...], path: FieldPath) -> tuple[str, ...]:
        found: list[str] = []
        for place, pattern in enumerate(patterns):
            whole = self.start / pattern
            if whole.exists():
                names = [pattern]
            elif glob.has_magic(pattern):
                names = sorted(glob.glob(pattern, root_dir=self.start, recursive=True))
                if not names:
                    raise self.error((*path, place), f"{whole}: no file matches")
            else:
                raise self.error((*path, place), f"{whole}: no such file")
            for name in names:
                file = str(self.start / name)
                if any(os.path.samefile(file, other) for other in found):
                    raise self.error((*path, place), f"{file}: is in the corpus already")
                found.append(file)
        return tuple(found)

    def error(self, path: FieldPath, what: str) -> InputError:
        return field_error(self.root, path, what, where=self.where)
