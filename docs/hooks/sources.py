"""Links from a page to a file of the repository lead to a copy of that file in the site, with its syntax coloured.

On a code host such a link opens the file itself. The site has no host: it must work from a folder, without a network.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()(?:\.\./)+([^)#\s]+)(?=[)#])")
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".h": "cpp",
    ".cpp": "cpp",
    ".css": "css",
    ".js": "js",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    linked = {path for page in files.documentation_pages() for path in _linked(page)}
    shown = linked | {child for folder in linked for child in _children(folder)}
    for path in sorted(shown):
        page = File.generated(config, _page_of(path), content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def to_copy(found: re.Match[str]) -> str:
        path = _in_repository(page.file.src_uri, found.group(0))
        if path is None:
            return found.group(0)
        return posixpath.relpath(_page_of(path), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(to_copy, markdown)


def _linked(page: File) -> Iterator[Path]:
    for found in LINK.finditer(page.content_string):
        path = _in_repository(page.src_uri, found.group(0))
        if path is not None:
            yield path


def _in_repository(page: str, target: str) -> Path | None:
    """The file or folder outside the documentation that a link of a page names; None if it names none."""
    path = Path(posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target)))
    leaves = path.parts[0] not in ("docs", "..")
    return path if leaves and (ROOT / path).exists() else None


def _children(path: Path) -> list[Path]:
    if not (ROOT / path).is_dir():
        return []
    children = sorted(child.relative_to(ROOT) for child in (ROOT / path).iterdir() if _is_source(child))
    return children + [deeper for child in children for deeper in _children(child)]


def _is_source(path: Path) -> bool:
    return path.suffix in LANGUAGES or (path.is_dir() and path.name != "__pycache__")


def _page_of(path: Path) -> str:
    return f"source/{path.as_posix()}.md"


def _shown(path: Path) -> str:
    """The page: a folder as the list of what is in it, a file as its text."""
    head = f"---\nsearch: {{exclude: true}}\nhide: [toc]\ntitle: {path}\n---\n\n# {path}\n\n"
    file = ROOT / path
    if file.is_dir():
        return head + "\n".join(
            f"- [{child.name}]({path.name}/{child.name}.md)" for child in _children(path) if child.parent == path
        )
    return f"{head}``````{LANGUAGES.get(path.suffix, 'text')}\n{file.read_text().rstrip()}\n``````\n"
