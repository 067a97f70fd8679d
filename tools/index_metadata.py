"""Makes the README's links absolute in the metadata of a release, for an index has no other files.

`PROJECT_URL=https://host/owner/name python -m build` names where the repository is. Without it, the
metadata have the README as it is in a checkout, and no URLs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")


class IndexMetadata(MetadataHookInterface):
    """Sets the fields of the project that depend on where its repository is."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, and ``urls`` where the address is known."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address := os.environ.get("PROJECT_URL", "").rstrip("/"):
            files = f"{address}/blob/v{metadata['version']}"
            text = RELATIVE.sub(rf"]({files}/\1)", text)
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{files}/docs/index.md",
                "Changelog": f"{files}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
