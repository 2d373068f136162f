"""The static files of the pages, part of the wheel: read once and served from memory, so that no path of a request reaches the disk."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from sprocketmq.web.answers import failure_response
from sprocketmq.web.failures import Failure

TYPES = {".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".svg": "image/svg+xml", ".html": "text/html"}


class StaticFiles:
    """All files of ``web/static`` by their path below it, with the page that loads the others."""

    def __init__(self, pages: Sequence[Mapping[str, str]]) -> None:
        root = files("sprocketmq.web").joinpath("static")
        self._files = dict(_files(root, ""))
        self._files |= _texts(self._files)
        shell = self._files.pop("shell.html")
        # A JSON block is data that browsers do not execute.
        self._shell = shell.replace(b"PAGES_JSON", json.dumps(list(pages)).encode())

    def shell(self, _: Request) -> Response:
        """Answer with the page that every address of the navigation shows."""
        return Response(self._shell, media_type="text/html")

    def file(self, request: Request) -> Response:
        """Answer with a file, or 304 when the browser has it already."""
        name = request.path_params["name"]
        data = self._files.get(name)
        if data is None:
            return failure_response(404, Failure("NotFound", "there is no such file"))
        tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=TYPES[name[name.rindex(".") :]], headers=headers)


def _files(directory: Traversable, prefix: str) -> "list[tuple[str, bytes]]":
    found = []
    for entry in directory.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            found += _files(entry, f"{name}/")
        elif name[name.rfind(".") :] in TYPES:
            found.append((name, entry.read_bytes()))
    return found


def _texts(known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return ``i18n/LANGUAGE.json``, each the texts of all files in ``i18n/LANGUAGE/``."""
    languages: dict[str, dict[str, str]] = {}
    for name in sorted(known):
        folder, _, rest = name.partition("/")
        if folder == "i18n" and "/" in rest:
            languages.setdefault(rest.partition("/")[0], {}).update(json.loads(known[name]))
    return {f"i18n/{language}.json": json.dumps(texts, ensure_ascii=False).encode() for language, texts in languages.items()}
