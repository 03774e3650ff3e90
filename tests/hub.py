"""A hub on localhost, as far as huggingface_hub asks one: repositories whose branches move between commits."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_INFO = re.compile(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/(?:models|datasets)/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def commit_hash(folder: Path) -> str:
    """A commit's name by what is in it, 40 hex digits."""
    digest = hashlib.sha1()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@dataclass(kw_only=True)
class Hub:
    """Serves `commits` (name to its folders by commit) through `branches`; keeps what was asked for, and by whom."""

    url: str = ""
    commits: dict[str, dict[str, Path]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)  # by name: status, X-Error-Code; of files only
    requests: list[str] = field(default_factory=list)  # paths, of repositories
    tokens: set[str | None] = field(default_factory=set)

    def push(self, name: str, folder: Path, *, branch: str = "main") -> str:
        """Moves a branch to the commit that `folder` is; returns its name."""
        commit = commit_hash(folder)
        self.commits.setdefault(name, {})[commit] = folder
        self.branches.setdefault(name, {})[branch] = commit
        return commit

    def folder(self, name: str, revision: str) -> tuple[str, Path] | None:
        """(commit, its folder) of a revision."""
        commit = self.branches.get(name, {}).get(revision, revision)
        found = self.commits.get(name, {}).get(commit)
        return None if found is None else (commit, found)


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """A `Hub` that answers at its `url` meanwhile."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(url: str, monkeypatch: Any, *, cache: Path) -> None:
    """From here on this process's huggingface_hub asks the hub at `url` and keeps what it fetches in `cache`."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Nothing: the tests' output is theirs."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for pattern, answer in ((_TREE, self._tree), (_INFO, self._info), (_FILE, self._file)):
            if match := pattern.fullmatch(path):
                self.hub.requests.append(path)
                self.hub.tokens.add(self.headers.get("Authorization"))
                return answer(*match.groups())
        return self._send(404, b"{}", {})

    def _found(self, name: str, revision: str | None) -> tuple[str, Path] | None:
        if name not in self.hub.commits:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (found := self.hub.folder(name, revision or "main")) is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            return found
        return None

    def _info(self, name: str, revision: str | None) -> None:
        if found := self._found(name, revision):
            self._send(200, json.dumps({"id": name, "sha": found[0], "siblings": []}).encode(), {})

    def _tree(self, name: str, revision: str) -> None:
        if found := self._found(name, revision):
            files = [path for path in sorted(found[1].rglob("*")) if path.is_file()]
            entries = {str(path.relative_to(found[1])): path.read_bytes() for path in files}
            body = [
                {"type": "file", "path": path, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
                for path, raw in entries.items()
            ]
            self._send(200, json.dumps(body).encode(), {})

    def _file(self, name: str, revision: str, path: str) -> None:
        if name in self.hub.refusals:
            status, code = self.hub.refusals[name]
            return self._send(status, b"{}", {"X-Error-Code": code} if code else {})
        if found := self._found(name, revision):
            if not (found[1] / path).is_file():
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            raw = (found[1] / path).read_bytes()
            self._send(200, raw, {"X-Repo-Commit": found[0], "ETag": f'"{hashlib.sha1(raw).hexdigest()}"'})
        return None

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
