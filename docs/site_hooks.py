"""Hooks of MkDocs: pages and files of the repository that lie outside docs/, and links from names to the API."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}  # which link to docs/NAME.md
LINK = re.compile(r"\]\((?:\.\./)+([^)#]+)\)")  # to a file in a folder above
INSIDE = "---\n\nThe modules below do the work behind those above. You rarely need them.\n"
NAME = re.compile(r"(?<!optional>)<code>(lottery(?:\.\w+)+)(?:\([^<]*\))?</code>")


@event_priority(100)  # before mkdocs-jupyter, which makes pages of the notebooks
def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add pages that lie beside docs/, and every file outside docs/ to which a page links."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    linked = {path for page in files.documentation_pages() for path in LINK.findall(page.content_string)}
    for path in sorted(linked - {file.src_uri for file in files}):
        # Anything else remains a broken link, which a strict build refuses.
        is_ours = (ROOT / path).resolve().is_relative_to(ROOT) and (ROOT / path).is_file()
        if is_ours and not path.endswith(".md"):
            files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Complete the pages of the API, and point links out of docs/ to the copies on the site."""
    if page.parent is None:  # a tab of its own has no pages beside it
        page.meta["hide"] = ["navigation"]
    room = ROOT / "lottery" / Path(page.file.src_uri).stem
    if page.file.src_uri.startswith("api/") and room.is_dir():
        names = [f"lottery.{room.name}.{path.stem}" for path in sorted(room.glob("[!_]*.py"))]
        rest = [f"::: {name}\n" for name in names if name not in markdown.split()]
        markdown = "\n".join([markdown, *([INSIDE, *rest] if rest else [])])
    up = "../" * page.file.src_uri.count("/")
    outside = {file.src_uri for file in files if not (ROOT / "docs" / file.src_uri).exists()}
    return LINK.sub(lambda link: f"]({up}{link[1]})" if link[1] in outside else link[0], markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link each dotted name, such as `lottery.masks.density`, to its entry in the API, if it has one."""
    return NAME.sub(r'<autoref identifier="\1" optional>\g<0></autoref>', html)
