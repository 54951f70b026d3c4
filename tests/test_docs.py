"""Every block of code in the README and the manual runs, and every command in them is one that
`fastload` takes.

A page's Python blocks run one after the other in one process, in a folder with photographs of many
sizes under the names that the pages use. What must be true after a block is in `CHECKS` here; a
user's snippet has no assert. A comment before a block says what it needs that may not be here:

    <!-- needs: lightning -->        run where the package is installed, only compiled elsewhere
    <!-- only compiled: a GPU -->    with the reason
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import typer

from fastload.cli.app import app
from tests import warm
from tests.manual_data import write_data
from tests.waiting import LIMIT

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "README.zh-CN.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "HACKING.md",
        ROOT / "CODE_OF_CONDUCT.md",
        ROOT / "SECURITY.md",
        ROOT / "llms.txt",
        ROOT / "skills" / "fastload" / "SKILL.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
PAGES = [page for page in PAGES if page.exists()]
SHOWN = [page for page in PAGES if "<!-- output" in page.read_text()]
"""Those whose outputs are compared, too: tests/test_page_outputs.py."""

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_REMARK = re.compile(r"<!-- (needs|only compiled): ([^>]+?) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    needs: str = ""
    """Packages, separated by commas, that must be importable for it to run."""
    only_compiled: str = ""
    """Why it does not run here."""

    @property
    def runs(self) -> bool:
        return not self.only_compiled and all(
            find_spec(name.strip()) for name in self.needs.split(",") if name
        )


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for fence in _FENCE.finditer(text):
        remark = _REMARK.search(text[: fence.start()])
        kind, words = remark.groups() if remark else ("", "")
        code = re.sub(rf"^{fence['indent']}", "", fence["code"], flags=re.MULTILINE)
        found.append(
            Block(
                line=text[: fence.start()].count("\n") + 1,
                language=fence["language"],
                code=code,
                needs=words if kind == "needs" else "",
                only_compiled=words if kind == "only compiled" else "",
            )
        )
    return found


CHECKS: dict[str, dict[str, str]] = {
    "README.md": {
        "for epoch in range(2)": "assert images.shape == (8, 3, 224, 224) and images.dtype == "
        "torch.float32",
        "fastload.from_dataloader(loader)": "assert next(iter(loader))[0].shape == (8, 3, 224, "
        "224)\nloader.close()",
    },
    "index.md": {
        "for epoch in range(2)": "assert images.shape == (8, 3, 224, 224) and len(train) == 3",
        "count = sum(": "assert count == 10",
        "images, labels = next(iter(loader))": "assert images.shape == (8, 3, 224, 224) and "
        "labels.shape == (8,)",
        "rest = list(train)": "assert len(rest) == 1",
    },
    "troubleshooting.md": {"found = clock.summary": "assert found.steps"},
    "trainer.md": {"found = clock.summary": "assert found.steps"},
    "SKILL.md": {"theirs, ours": "assert same and len(theirs) == len(ours)"},
    "parallel.md": {"resumed = [": "assert resumed == rest and len(rest) == 5"},
    "backends.md": {"CacheOptions": "assert images.shape == (4, 3, 64, 64)"},
    "data.md": {
        "moved =": 'assert batch["bbox"][0].tolist() == [12, 2, 28, 18]',
        "flipped =": 'assert batch["boxes"][0].tolist() == [12, 2, 28, 18]',
        "pair =": """
            assert pair["train"].classes == pair["val"].classes == ("cat", "dog", "fox")
            numbers = {"cat": 0, "dog": 1, "fox": 2}
            assert pair["train"].class_to_idx == pair["val"].class_to_idx == numbers
            for loader in pair.values():
                assert next(iter(loader))[0].shape == (3, 3, 224, 224)
                loader.close()
        """,
        "opened =": """
            assert loader.class_to_idx == {"fox": 0, "dog": 1, "cat": 2}
            found = [label for _, labels in loader for label in labels.tolist()]
            assert [found.count(label) for label in range(3)] == [7, 7, 15]
            loader.close()
        """,
        "depth, _ =": """
            assert depth.numpy().dtype == np.uint16 and depth.shape == (2, 1, 8, 9)
            assert depth.flatten(1).long().amax(1).tolist() == [7, 1007]
        """,
    },
    "stores.md": {
        "class LmdbImages": """
            from pathlib import Path
            from torchvision.transforms import v2
            crop = v2.RandomResizedCrop(224)
            files = sorted(Path("data/val").rglob("*.jpg"))[:4]
            with lmdb.open("photographs.lmdb") as store, store.begin(write=True) as write:
                for number, path in enumerate(files):
                    write.put(str(number).encode(), path.read_bytes())
                write.put(b"labels", np.arange(4).tobytes())
            for backend, workers in (("turbojpeg", 2), ("torch", 0)):
                with fastload.create_loader(
                    photographs("photographs.lmdb"), 4, transform=crop, backend=backend,
                    num_workers=workers
                ) as loader:
                    images, labels = next(iter(loader))
                    assert images.shape == (4, 3, 224, 224) and labels.tolist() == [0, 1, 2, 3]
        """,
        "class Hdf5Images": """
            from pathlib import Path
            files = sorted(Path("data/val").rglob("*.jpg"))[:4]
            with h5py.File("photographs.h5", "w") as file:
                kind = h5py.vlen_dtype(np.uint8)
                images = file.create_dataset("images", 4, kind)
                for number, path in enumerate(files):
                    images[number] = np.frombuffer(path.read_bytes(), np.uint8)
                file["labels"] = np.arange(4)
            source = hdf5_photographs("photographs.h5")
            assert [source.images["image"].read(row) for row in range(4)] == [
                path.read_bytes() for path in files
            ]
            with fastload.create_loader(source, 4, transform=crop, num_workers=2) as loader:
                images, labels = next(iter(loader))
                assert images.shape == (4, 3, 224, 224) and labels.tolist() == [0, 1, 2, 3]
        """,
    },
    "tables.md": {
        "table =": """
            assert images.shape == (3, 3, 224, 224)
            assert labels.tolist() == [0, 3, 1]  # the table's numbers, as they are
        """,
        "train = fastload.open_source": "assert val.source.classes == train.source.classes",
    },
    "sizes.md": {
        "bucketed =": "assert tuple(images.shape[2:]) in bucketed.shapes",
        "counts =": "assert max(counts) <= 4096 and np.mean(sorted(counts)[1:]) > 4080",
        "same =": "assert same.shape == (8, 512, 512)",
        "lengths = [len(staged)]": "count = len(staged.dataset)\n"
        "assert lengths == [-(-count // 8), -(-count // 2)]",
        "costs =": "assert sorted(costs) == [121, 125]",
        "scaled =": "assert {height, width} <= {192, 224, 288} and len(scaled.shapes) == 3",
    },
    "detection.md": {
        "boxes = fastload.Ragged.of": """
            assert batch["boxes"].values.tolist() == [[12, 2, 28, 18], [22, 0, 32, 10]]
            assert batch["boxes"].offsets.tolist() == [0, 2, 2, 2]
            assert [row.tolist() for row in batch["labels"]] == [[1, 2], [], []]
        """,
    },
    "guarantees.md": {"remaining =": "assert len(remaining) == 7"},
    "clients.md": {
        "fastload.Views(": "assert [tuple(v.shape) for v in images] == [(4, 3, 224, 224)] * 2 "
        "+ [(4, 3, 96, 96)] * 6",
    },
    "CONTRIBUTING.md": {
        "register_kind(Centres())": 'assert batch["centre"].tolist() == [[2.0, 2.0]]',
        "source = Source(": """
            assert images.shape[:2] == (1, 3)
            from PIL import Image
            from torchvision.transforms.v2.functional import pil_to_tensor
            first = Image.open(sorted(Path("data/train").rglob("*.jpg"))[0])
            expected = pil_to_tensor(ImageOps.invert(first))
            assert int((images[0].int() - expected.int()).abs().max()) <= 2
        """,
    },
}
"""Of a page: what a block has in it, and what must be true after that block."""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("manual"))


BEFORE = """
import fastload

def after_torch(existing, _adopt=fastload.from_dataloader, **options):
    next(iter(existing))
    return _adopt(existing, **options)

fastload.from_dataloader = after_torch
"""
"""A DataLoader that a page adopts is one that torch itself gives batches of."""


def script_of(page: Path) -> str:
    """The page's Python and the checks of it as a program."""
    checks = dict(CHECKS.get(page.name, {}))
    parts = [BEFORE]
    for block in blocks_of(page):
        if block.language != "python":
            continue
        own = [textwrap.dedent(checks.pop(text)) for text in [*checks] if text in block.code]
        if block.runs:
            parts += [f"# {page.name}:{block.line}\n{block.code}", *own]
    assert not checks, f"{page.name} has no block with {[*checks]}"
    return "\n".join(parts) if parts[1:] else ""


@pytest.mark.whole
@pytest.mark.parametrize("page", sorted({*PAGES} - {*SHOWN}), ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, data: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            tree = ast.parse(block.code, f"{page.name}:{block.line}")
            checked = any(isinstance(node, ast.Assert) for node in ast.walk(tree))
            assert not checked, (
                f"{page.name}:{block.line}: what is to be true after it belongs into CHECKS"
            )
    script = script_of(page)
    if not script.strip():
        return
    for name in ("data", "cracks", "kaggle", "faces"):
        (tmp_path / name).symlink_to(data / name)
    program = tmp_path / "page.py"
    program.write_text(script)
    done = warm.run(program.name, directory=tmp_path)
    assert done.returncode == 0, f"{page.name}:\n{done.stdout}\n{done.stderr}"


def commands_of(page: Path) -> list[tuple[int, list[str]]]:
    """(line, words) of each `fastload` command in the page's unlabelled, `console`, `sh` and `bash`
    blocks."""
    found = []
    for block in blocks_of(page):
        if block.language not in ("", "console", "sh", "bash"):
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            match = re.match(r"^(?:\$ )?(?:\w+=\S+ )*fastload (.*)", line.strip())
            if match:
                words = re.split(r"\s(?:#|>|\|)\s", match[1] + " ")[0]
                found.append((block.line, shlex.split(words.replace("|", " "))))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    root: Any = typer.main.get_command(app)
    for line, words in commands_of(page):
        if any(word.startswith(("...", "[")) or word.endswith("...") for word in words):
            words = [word for word in words if not word.startswith(("...", "["))]
        command, names = root, []
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words[0]]
            names.append(words.pop(0))
        assert names, f"{page.name}:{line}: fastload has no command {words[:1]}"
        known = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        if "--" in words:  # what follows is another program
            words = words[: words.index("--")]
        for word in words:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, (
                    f"{page.name}:{line}: fastload {' '.join(names)} has no {word}"
                )


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        links = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text())
        for target, place in links:
            there = page.parent / target if target else page
            if not there.exists() or (place and place not in _places(there)):
                broken.append(f"{page.name}: {target}#{place}")
    assert not broken


@cache
def _places(page: Path) -> set[str]:
    """What a link may name of a page: headings, as GitHub and the manual's pages write them, names
    whose docstrings it has, and what it gives an id."""
    text = _FENCE.sub("", page.read_text())
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", "\n".join(re.findall(r"(?m)^#+ (.*)$", text)))
    headings = [re.sub(r"[^\w\s-]", "", line).strip().lower() for line in words.splitlines()]
    places = {re.sub(r"\s", "-", line) for line in headings}
    places |= {re.sub(r"[-\s]+", "-", line) for line in headings}
    named = re.findall(r'(?m)^::: (\S+)$|id="([^"]+)"', text)
    return places.union(*named)


def test_the_tests_that_hold_a_guarantee_are_there() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(test_\w+\*?\.py)(?:::(\w+\*?))?`", page)
    assert named
    for file, name in named:
        files = sorted((ROOT / "tests").rglob(file))
        assert files, f"guarantees.md names {file}"
        pattern = "^def " + name.replace("*", r"\w*") + r"\(" if name else ""
        assert any(re.search(pattern, path.read_text(), re.MULTILINE) for path in files), (
            f"{file} has no {name}"
        )


@pytest.mark.whole
@pytest.mark.skipif(
    not find_spec("mkdocs") or not find_spec("mkdocstrings"),
    reason="needs pip install .[docs]",
)
def test_the_manual_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path: path.read_text() for path in (tmp_path / "reference").glob("*.html")}
    documented = [
        name for text in pages.values() for name in re.findall(r'id="(fastload\.[\w.]*)"', text)
    ]
    for name in ("create_loader", "from_dataloader", "CacheOptions", "StateMismatchError"):
        assert any(each.endswith(f".{name}") for each in documented), f"{name} is documented"
    assert len(documented) == len({*documented}), "once each"
    assert not [name for name in documented if re.search(r"\._(?!_)", name)], "private names"
    assert not [path.name for path, text in pages.items() if "&lt;!-- output" in text]
    private = re.compile(r'<span class="n">_[a-z]\w*</span><span class="p">:')
    assert not [path.name for path, text in pages.items() if private.search(text)], "parameters"
    # Of a method `__init__`, and of a class that another one is derived from.
    assert "the gain is uniform" in pages[tmp_path / "reference" / "transforms.html"]
    assert pages[tmp_path / "reference" / "orders.html"].count('id="fastload.Balanced.cost"') == 1
    ids = {
        path: {*re.findall(r'id="?([^">\s]+)', path.read_text())}
        for path in tmp_path.rglob("*.html")
    }
    for path in tmp_path.rglob("*.html"):  # they are opened as files, where there is no network
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="?([^">\s]+)', path.read_text())
        loaded += re.findall(
            r'<link[^>]*rel="?stylesheet"?[^>]*href="?([^">\s]+)', path.read_text()
        )
        assert loaded
        assert [name for name in loaded if not _opened(tmp_path, path, name).is_file()] == [], (
            path.name
        )
        for link in re.findall(r'<a [^>]*href="?([^">\s]+)', path.read_text()):
            target, _, place = link.partition("#")
            if path.name == "404.html" or target.startswith(("http", "mailto:")):
                continue
            opened = _opened(tmp_path, path, target) if target else path
            assert opened.is_file(), f"{path.name} leads to {target}"
            there = unquote(place) in ids.get(opened.resolve(), ()) or not place
            assert there, f"{path.name} leads to {link}, of which the page has no such place"


def _opened(manual: Path, page: Path, target: str) -> Path:
    """The file that a page means."""
    return manual / target[1:] if target.startswith("/") else page.parent / target


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, as `make docs` makes them."""
    made = tmp_path_factory.mktemp("built") / "manual"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(made)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return made


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars")
    for flag in (*flags, "window-size=1280,900", f"user-data-dir={tmp_path / 'me'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def in_a_browser(test: Any) -> Any:
    there = find_spec("mkdocs") and find_spec("mkdocstrings")
    test = pytest.mark.skipif(not there, reason='pip install -e ".[docs]"')(test)
    lacking = not CHROMIUM or not DRIVER
    return pytest.mark.skipif(lacking, reason="needs chromium and chromedriver")(test)


@pytest.mark.whole
@in_a_browser
def test_the_manual_opened_as_a_file_is_searched(manual: Path, browser: Any) -> None:
    support = import_module("selenium.webdriver.support.ui")
    browser.get((manual / "index.html").as_uri())
    wait = support.WebDriverWait(browser, LIMIT)
    box = wait.until(lambda page: page.find_element("css selector", "input.md-search__input"))
    wait.until(lambda page: box.is_displayed())
    box.click()
    box.send_keys("state_dict")
    found = wait.until(lambda page: page.find_elements("css selector", "a.md-search-result__link"))
    browser.get(found[0].get_attribute("href"))
    assert "state_dict" in browser.page_source
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.whole
@in_a_browser
def test_no_page_of_the_manual_is_wider_than_a_phone(manual: Path, browser: Any) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    wide = []
    for page in sorted(manual.rglob("*.html")):
        browser.get(page.as_uri())
        if browser.execute_script("return document.documentElement.scrollWidth") > 390:
            wide.append(page.name)
    assert wide == []
    # A picture with colours of its own for light and dark follows the page.
    browser.get((manual / "index.html").as_uri())
    picture = "getComputedStyle(document.querySelector('img[src$=\"gain.svg\"]')).colorScheme"
    seen = []
    for scheme in ("default", "slate"):
        browser.execute_script(f"document.body.dataset.mdColorScheme = '{scheme}'")
        seen.append(browser.execute_script(f"return {picture}"))
    assert seen == ["light", "dark"]


@pytest.mark.parametrize(
    ("page", "topics"),
    [
        (
            "moving.md",
            ["torch.utils.data.DataLoader", "FFCV", "DALI", "timm", "albumentations", "WebDataset"],
        ),
        ("multi-node.md", ["torchrun", "SLURM"]),
        (
            "troubleshooting.md",
            [
                "GPU is at 0%",
                "Bus error",
                "Too many open files",
                "Two libjpegs",
                "Pillow or Pillow-SIMD",
                "Network disks",
                "DataParallel fills the first GPU",
            ],
        ),
    ],
)
def test_what_people_look_for_has_a_heading(page: str, topics: list[str]) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    assert [topic for topic in topics if not any(topic in heading for heading in headings)] == []


def test_every_page_of_the_manual_is_in_its_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text().split("nav:")[1]
    assert set(re.findall(r": (\S+\.md)$", contents, re.MULTILINE)) == {
        str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")
    }


def test_the_glossary_is_sorted_and_names_each_word_once() -> None:
    words = re.findall(
        r"^\| ([^|]+?) \| [^|]+ \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )[1:]
    assert len(words) >= 40
    assert words == sorted({*words}, key=lambda word: word.replace("_", " ").lower())
    package = " ".join(path.read_text() for path in (ROOT / "fastload").rglob("*.py")).lower()
    assert [word for word in words if re.split(r"[ _]", word)[-1].lower() not in package] == [], (
        "used nowhere"
    )


def test_the_chinese_readme_is_in_step() -> None:
    english, chinese = (ROOT / name for name in ("README.md", "README.zh-CN.md"))

    def code(page: Path) -> list[str]:
        return [
            re.sub(r" *#.*", "", block.code)
            for block in blocks_of(page)
            if block.language == "python"
        ]

    def figures(page: Path) -> list[list[str]]:
        """Of the tables of what was measured: the numbers of each row of a backend."""
        rows = re.findall(r"^\| `\w+`.*\d\.\d.*$", page.read_text(), re.MULTILINE)
        return [re.findall(r"\d+\.\d+|\b\d+\b", row) for row in rows]

    assert code(english) == code(chinese)
    assert commands_of(english)
    assert [w for _, w in commands_of(english)] == [w for _, w in commands_of(chinese)]
    assert len(figures(english)) == 56
    assert figures(english) == figures(chinese)
    backends = re.compile(r'^\| `"(\w+)"` \|', re.MULTILINE)
    assert backends.findall(english.read_text()) == backends.findall(chinese.read_text())


@pytest.mark.parametrize(("page", "count"), [("index", 6), ("tutorial", 21)])
def test_a_chinese_page_has_the_code_and_outputs_of_the_english_one(page: str, count: int) -> None:
    english, chinese = (
        re.findall(
            r"(?:<!-- output[^>]*>\n)?```.*?```", (ROOT / "docs" / name).read_text(), re.DOTALL
        )
        for name in (f"{page}.md", f"{page}.zh-CN.md")
    )
    assert len(english) == count
    assert english == chinese


def test_the_versions_of_python_are_named() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"Programming Language :: Python :: 3\.(\d+)", text)
    least = re.search(r'requires-python = ">=3\.(\d+)"', text)
    assert least is not None
    assert named[0] == least[1]
    assert list(map(int, named)) == list(range(int(named[0]), int(named[-1]) + 1))
    made = f"3.{named[0]} to 3.{named[-1]}"
    assert made in (ROOT / "Makefile").read_text(), "those that wheels are made for"
