"""The command in messages that installs an extra: it fits how fastload was installed."""

from __future__ import annotations

import json
import platform
import re
import runpy
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fastload import distribution
from fastload.distribution import install_command

ROOT = Path(__file__).parents[1]


METADATA = """Metadata-Version: 2.4
Name: torch-fastload
Requires-Dist: torch>=2.5
Provides-Extra: dali
Requires-Dist: nvidia-dali-cuda120>=2.4; (python_version < "3.15") and extra == "dali"
Provides-Extra: dali-cuda130
Requires-Dist: nvidia-dali-cuda130>=2.4; (python_version < "3.15") and extra == "dali-cuda130"
Provides-Extra: tiff
Requires-Dist: tifffile>=2024.1; extra == 'tiff'
Requires-Dist: imagecodecs>=2024.1; extra == 'tiff'
"""


def installed(monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None) -> None:
    """As if it were installed from there; None: from a place that is not recorded."""

    class Installed(metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            texts = {"METADATA": METADATA, "direct_url.json": origin and json.dumps(origin)}
            return texts[filename]

        def locate_file(self, path: object) -> Path:
            raise NotImplementedError

    def found(name: str) -> metadata.Distribution:
        assert name == "torch-fastload"
        return Installed()

    monkeypatch.setattr(metadata, "distribution", found)


def test_from_an_unknown_place_the_packages_of_the_extra_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has registered torch-fastload in the package index; anybody could."""
    installed(monkeypatch, None)
    assert install_command("dali") == 'pip install "nvidia-dali-cuda120>=2.4"'
    assert (
        install_command("tiff", upgrade=True)
        == 'pip install --upgrade "tifffile>=2024.1" "imagecodecs>=2024.1"'
    )


def test_from_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "my code"
    folder.mkdir()
    installed(monkeypatch, {"url": folder.as_uri(), "dir_info": {"editable": True}})
    assert install_command("train") == f'pip install -e "{folder}[train]"'
    installed(monkeypatch, {"url": folder.as_uri(), "dir_info": {}})
    assert install_command("train") == f'pip install "{folder}[train]"'
    folder.rmdir()
    assert install_command("dali") == 'pip install "nvidia-dali-cuda120>=2.4"'


def test_from_a_wheel_or_a_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "torch_fastload-0.1.0-py3-none-any.whl"
    wheel.touch()
    installed(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("dali") == f'pip install "torch-fastload[dali] @ {wheel.as_uri()}"'
    installed(
        monkeypatch,
        {"url": "https://example.org/f.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
    )
    assert (
        install_command("dali")
        == 'pip install "torch-fastload[dali] @ git+https://example.org/f.git"'
    )


def test_a_checkout_without_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert install_command("dali") == f'pip install -e "{ROOT}[dali]"'
    monkeypatch.setattr(distribution, "_SOURCES", ROOT / "tests")
    assert install_command("dali") == 'pip install ".[dali]" in a checkout of fastload'


def test_every_extra_that_a_message_names_is_one() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'name = "{distribution.NAME}"' in project
    extras = re.findall(
        r"^(\w+) = \[",
        project.split("[project.optional-dependencies]")[1].split("\n\n")[0],
        re.MULTILINE,
    )
    named = {
        name
        for path in (ROOT / "fastload").rglob("*.py")
        for name in re.findall(r"(?:install_command\(|extra=)[\"'](\w+)", path.read_text())
    }
    assert named == {
        "dali",
        "detection",
        "lance",
        "nvrtc",
        "parquet",
        "ray",
        "remote",
        "report",
        "tiff",
        "train",
    }
    assert named <= {*extras}


def test_nothing_sends_people_to_a_name_in_the_index_that_is_not_ours() -> None:
    """`fastload` is another project there, and `torch-fastload` belongs to nobody until there is a
    release: what is installed comes from a checkout or an address."""
    files = [
        path
        for folder in ("fastload", "docs", "scripts", "docker", "examples", "benchmarks", "tests")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".sh", ".toml", ".yaml", "") and path.is_file()
    ]
    files += [*ROOT.glob("*.md"), ROOT / "Makefile"]
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in files
        if path != Path(__file__)
        for found in re.finditer(
            r"pip install[^\n`]*?(?<![\w/.-])(torch-)?fastload\b(?!\.|/|\[\w+\] @)",
            path.read_text(errors="ignore"),
        )
    ]
    assert not wrong


def test_the_licences_of_all_that_wheels_hold_are_there() -> None:
    notice = (ROOT / "NOTICE").read_text()
    named = re.findall(r"licenses/[\w.-]+\.txt", notice)
    assert {*named} == {str(path.relative_to(ROOT)) for path in (ROOT / "licenses").iterdir()}
    assert "based in part on the work of the Independent JPEG Group" in " ".join(notice.split())


def test_a_wheel_without_the_licence_of_a_library_is_refused() -> None:
    missing = runpy.run_path(str(ROOT / "scripts" / "wheel_licences.py"))["missing_licences"]
    info = "torch_fastload-0.1.0.dist-info/licenses"
    texts = [
        f"{info}/licenses/{name}.txt"
        for name in ("libjpeg-turbo", "isa-l", "libwebp", "nanobind", "robin-map")
    ]
    libraries = [
        "torch_fastload.libs/libjpeg-5c6a9a06.so.62.3.0",
        "torch_fastload.libs/libisal-0a1b2c3d.so.2.0.30",
    ]
    core = ["fastload/native/_core.cpython-312-x86_64-linux-gnu.so"]
    assert missing([*core, *libraries, *texts, f"{info}/NOTICE"]) == []
    assert missing([*libraries, *texts]) == ["NOTICE"]
    assert missing([*core, *libraries, *texts[2:], f"{info}/NOTICE"]) == [
        "libjpeg: licenses/libjpeg-turbo.txt",
        "libisal: licenses/isa-l.txt",
    ]
    assert len(missing([*texts, f"{info}/NOTICE", "torch_fastload.libs/libfoo-1.so.1"])) == 1


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_function_names_each_extension_that_its_instructions_are_of(tmp_path: Path) -> None:
    """Zig's compiler, which makes the wheels for an older glibc, takes the others for switched off.
    With this option so does g++ of CRC32, which SSE4.2 brings otherwise."""
    core = ROOT / "fastload" / "native"
    options = ["-std=c++17", "-mno-crc32", "-DFASTLOAD_X86", f"-I{core}"]
    done = subprocess.run(
        ["g++", *options, "-c", core / "store_checksums.cpp", "-o", tmp_path / "object.o"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_image_is_built_from_files_that_its_context_holds() -> None:
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
    copies = re.findall(
        r"^COPY (?!--from)(.*) \S+$",
        (ROOT / "docker" / "Dockerfile").read_text(),
        flags=re.MULTILINE,
    )
    copied = [path for line in copies for path in line.split() if not path.startswith("--")]
    assert {"NOTICE", "licenses"} <= {*copied}
    for path in copied:
        assert (ROOT / path).exists()
        assert path.split("/")[0] in let_through, (
            f"{path} is copied by the Dockerfile, but .dockerignore leaves it out"
        )


def test_setup_removes_the_distribution_of_the_old_name_before_it_installs() -> None:
    """Two editable installations that import as `fastload` shadow each other."""
    lines = (ROOT / "scripts" / "setup.sh").read_text().splitlines()
    (removed,) = [
        number
        for number, line in enumerate(lines)
        if re.match(r"pip uninstall .*--yes fastload\b", line)
    ]
    assert removed < min(
        number for number, line in enumerate(lines) if "install --quiet --editable" in line
    )


# -- The repository --------------------------------------------------------------------------------

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_use_actions_by_hash_and_have_no_rights_that_they_do_not_ask_for(
    workflow: Path,
) -> None:
    text = workflow.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.match(r" # v\d+\.\d+\.\d+", comment), f"{action}: of which version?"
    assert "\npermissions: {}\n" in text
    jobs = text[text.index("\njobs:") :]
    assert len(re.findall(r"^  \w+:$", jobs, re.MULTILINE)) == jobs.count("    permissions:\n")
    for script in re.findall(r"\bscripts/[\w.]+", text):
        assert (ROOT / script).is_file(), script


def test_the_matrix_of_pythons_is_that_of_the_classifiers_and_the_one_without_a_gil() -> None:
    listed = runpy.run_path(str(ROOT / "scripts" / "pythons.py"))["pythons"]()
    text = (ROOT / "pyproject.toml").read_text()
    classifiers = [f"Programming Language :: Python :: {one}" in text for one in listed]
    assert classifiers == [True] * 6 + [False]
    assert (listed[0], listed[-1]) == ("3.10", "3.14t")
    # One wheel from 3.12 on; the others have their own.
    assert 'build = ["cp310-*", "cp311-*", "cp312-*", "cp314t-*"]' in text
    assert '"wheel.py-api" = "cp312"' in text


def requirements(listed: list[str]) -> dict[str, SpecifierSet]:
    return {one.name.lower(): one.specifier for one in map(Requirement, listed)}


def test_the_lock_file_is_of_the_requirements_that_there_are() -> None:
    """What `uv lock --check` says, without an index."""
    toml = pytest.importorskip("tomllib")
    project = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = toml.loads((ROOT / "uv.lock").read_text())
    (locked,) = (one for one in lock["package"] if one["name"] == project["name"])
    in_lock: dict[str, dict[str, SpecifierSet]] = {"": {}}
    for one in locked["metadata"]["requires-dist"]:
        extra = re.search("extra == '([^']+)'", one.get("marker", ""))
        group = in_lock.setdefault(extra[1] if extra else "", {})
        group[one["name"]] = SpecifierSet(one.get("specifier", ""))
    extras = {
        name: requirements(listed) for name, listed in project["optional-dependencies"].items()
    }
    assert in_lock == {"": requirements(project["dependencies"]), **extras}


def test_the_recipe_for_conda_asks_for_what_the_package_asks_for() -> None:
    toml = pytest.importorskip("tomllib")
    yaml = pytest.importorskip("yaml")
    pyproject = toml.loads((ROOT / "pyproject.toml").read_text())
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    listed: dict[str, list[str]] = {"host": [], "run": []}
    for part, entries in recipe["requirements"].items():
        for entry in entries:
            if isinstance(entry, dict):
                listed[part] += entry["then"]
            elif "${{" not in entry:
                listed.setdefault(part, []).append(entry)
    needed = requirements(pyproject["project"]["dependencies"])
    needed["pytorch"] = needed.pop("torch")
    del needed["simplejpeg"]  # of wheels without a libjpeg: the recipe's core has one
    run = requirements(listed["run"])
    assert run.pop("python") == SpecifierSet()
    assert run == needed
    host = requirements(listed["host"])
    built = requirements(pyproject["build-system"]["requires"])
    assert {name: host[name] for name in built} == built
    minimum = re.search(
        r"cmake_minimum_required\(VERSION (\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text()
    )
    assert minimum
    assert requirements(listed["build"])["cmake"] == SpecifierSet(f">={minimum[1]}")


def test_the_page_for_who_reads_the_code_names_folders_and_files_that_there_are() -> None:
    text = (ROOT / "HACKING.md").read_text()
    named = re.findall(r"`((?:[\w-]+/)+(?:[\w-]+\.py)?|\w+\.py)`", text)
    assert len(named) > 20
    places = ROOT, ROOT / "fastload"
    assert [one for one in named if not any((at / one).exists() for at in places)] == []


def test_readme_of_a_release_has_absolute_links_alone() -> None:
    """As a package index shows it. Each goes to a file that is there, a picture to its bytes."""
    script = runpy.run_path(str(ROOT / "scripts" / "readme_links.py"))
    text = (ROOT / "README.md").read_text()
    address = "https://example.org/someone/fastload"
    before, after = (
        script["links"](page) for page in (text, script["absolute"](text, address, "v1"))
    )
    assert len(before) == len(after) > 30
    for relative, absolute in zip(before, after, strict=True):
        assert absolute.startswith(("https://", "#")), absolute
        if relative == absolute:
            continue
        kind = "raw" if "![" in text.partition(f"]({relative})")[0].rpartition("\n")[2] else "blob"
        assert absolute == f"{address}/{kind}/v1/{relative}"
        assert (ROOT / relative.partition("#")[0]).exists(), relative
    # Code, and links that lead elsewhere, stay. There is no other form of a link on the page.
    page = "[a](b.md) ![p](p.png) [c](https://x.org) [d](#d)\n```python\nx = y[0](z)\n```\n"
    assert script["absolute"](page, "A", "C") == (
        "[a](A/blob/C/b.md) ![p](A/raw/C/p.png) [c](https://x.org) [d](#d)\n"
        "```python\nx = y[0](z)\n```\n"
    )
    assert not re.search(r"<(a|img)\b|^\[[^]]+\]:", text, re.MULTILINE)


def test_whatever_is_published_is_built_from_a_readme_with_absolute_links() -> None:
    jobs = (ROOT / ".github/workflows/wheels.yml").read_text().split("\n  source:")
    for job, builds in zip(jobs, ("pypa/cibuildwheel", "build --sdist"), strict=True):
        assert 0 < job.index("scripts/readme_links.py") < job.index(builds)
