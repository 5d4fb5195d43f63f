"""The documentation site: it builds without a warning, has every public name, fetches nothing, and no link is broken."""

import ast
import functools
import html.parser
import logging
import os
import re
import tomllib
import types
import zlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import lottery
from lottery import plots

ROOT = Path(__file__).parents[1]
PACKAGE = Path(lottery.__file__).parent


class Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what a browser fetches to show it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.fetched = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link":
            # What these name is only looked at when a reader goes there.
            if given.get("rel") not in ("canonical", "next", "prev"):
                self.fetched.append(given["href"])
        elif given.get("src"):
            self.fetched.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site. A warning of MkDocs, of a plugin or of the reader of docstrings ends the build."""
    pytest.importorskip("mkdocs")
    os.environ["NO_MKDOCS_2_WARNING"] = "1"  # an announcement about other software
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    warnings = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("mkdocs").addHandler(handler)
    folder = tmp_path_factory.mktemp("site")
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
        config.plugins.run_event("startup", command="build", dirty=False)
        build(config)
    except BaseException as error:
        pytest.fail("\n".join([str(error), *warnings]))
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


@pytest.fixture(scope="module")
def entries(site):
    """Where the site describes each name, as other projects' documentation looks it up."""
    names = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    rows = [line.split(" ") for line in names.splitlines()]
    return {name: where.replace("$", name) for name, _, _, where, _ in rows}


@functools.cache
def public_names():
    """The names at the top; of each room its face, and every function and class that a file of it defines."""
    return list(_public_names())


def _public_names():
    for name in set(dir(lottery)) - {"__version__"}:
        yield f"lottery.{name}"
        room = getattr(lottery, name)
        if not isinstance(room, types.ModuleType):
            continue
        for face in getattr(room, "__all__", ()):
            yield f"{room.__name__}.{face}"
        for path in sorted((PACKAGE / name).glob("*.py")) or [PACKAGE / f"{name}.py"]:
            module = room.__name__ if path.stem in ("__init__", name) else f"{room.__name__}.{path.stem}"
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    yield f"{module}.{node.name}"


def test_public_names_are_found():
    names = set(public_names())
    assert {"lottery.run", "lottery.masks", "lottery.masks.apply", "lottery.pruning.keep_highest"} <= names
    assert {"lottery.pruning.criteria.snip", "lottery.enforcement.EnforceMasks", "lottery.tickets.Ticket"} <= names
    assert len(names) > 200


def test_every_public_name_has_an_entry(entries, pages):
    missing = [name for name in public_names() if name not in entries]
    assert not missing, "a room without a page under docs/api, or a name without a docstring"
    for name in public_names():
        page, _, anchor = entries[name].partition("#")
        assert anchor in pages[f"{page}index.html"].anchors, name


def test_every_kind_of_figure_has_an_entry(pages):
    anchors = pages["api/plots/index.html"].anchors
    assert {f"lottery.plots.{kind}" for kind in plots.kinds()} <= anchors


def test_no_link_is_broken(site, pages):
    for name, page in pages.items():
        if name == "404.html":  # whose links begin at the root of wherever the site is
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert parts.scheme in ("https", "mailto"), (name, link)
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (name, link)
            if parts.fragment and target.suffix == ".html":
                anchors = pages[target.resolve().relative_to(site.resolve()).as_posix()].anchors
                assert unquote(parts.fragment) in anchors, (name, link)


def test_nothing_is_fetched_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert not [one for one in page.fetched if re.match(r"(?:\w+:)?//", one)], name
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", path.read_text()), path


def test_names_in_text_and_docstrings_lead_to_their_entries(site):
    text = (site / "settings" / "index.html").read_text()
    assert re.search(r'href="\.\./api/pruning/#lottery\.pruning\.criteria\.CRITERIA"', text)
    docstrings = (site / "api" / "pruning" / "index.html").read_text()
    assert 'href="#lottery.pruning.ranking.keep_highest"><code>keep_highest</code>' in docstrings
    assert not [path for path in site.rglob("*.html") if "<autoref" in path.read_text()]


def test_the_citation_file_is_of_this_version():
    """Its schema is that of https://citation-file-format.github.io, version 1.2.0."""
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert all({"name"} <= one.keys() or {"family-names"} <= one.keys() for one in citation["authors"])


def test_the_workflow_publishes_what_the_tests_build():
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test-and-publish.yml").read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    (uploaded,) = [step["with"]["path"] for step in steps if "upload-pages-artifact" in step.get("uses", "")]
    assert f"site_dir: {uploaded}\n" in (ROOT / "mkdocs.yml").read_text()
    assert set(jobs["publish"]["needs"]) == jobs.keys() - {"publish"}
    assert any(step.get("run") == ".ci/run" for step in steps) and (ROOT / ".ci" / "run").exists()


def test_the_search_finds_words_of_the_glossary(site):
    index = (site / "search" / "search_index.json").read_text()
    assert all(f"glossary/#{word}" in index for word in ("survivor", "censored", "dead-unit", "winning"))
