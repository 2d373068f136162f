"""What a package index shows of both distributions: the README with absolute links, and links to the repository.

The README links to files beside it, which an index does not have. A build on GitHub knows the repository and the tag; elsewhere links stay
as they are, and the package names no repository. ``pyproject.toml`` and ``deploy/client.toml`` have hatchling call this file.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# An inline link of Markdown, unless it has a scheme or stays on the page.
LINK = re.compile(r"(!?)\[((?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(text: str, repository: str, ref: str) -> str:
    """Return Markdown whose links to files lead to a repository, those of images to their content."""

    def rewritten(found: re.Match[str]) -> str:
        image, shown, target = found.groups()
        return f"{image}[{LINK.sub(rewritten, shown)}]({repository}/{'raw' if image else 'blob'}/{ref}/{target})"

    return LINK.sub(rewritten, text)


class PackagePage(MetadataHookInterface):
    """Sets ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        urls = {}
        if name := os.environ.get("GITHUB_REPOSITORY"):
            repository = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
            ref = os.environ.get("GITHUB_REF_NAME", "HEAD")
            text = absolute(text, repository, ref)
            urls = {
                "Source": repository,
                "Documentation": f"{repository}/blob/{ref}/docs/guide/getting-started.md",
                "Changelog": f"{repository}/blob/{ref}/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls
