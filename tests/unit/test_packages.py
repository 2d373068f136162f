"""Sdist and wheel: complete, nothing too much, and at work where nothing of the repository is in reach."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from deploy.dist import FIRST_STEPS
from deploy.release_notes import CHANGELOG, section

from sprocketmq import __version__

ROOT = Path(__file__).parents[2]


def run(*command, cwd, env=None):
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked(folder, suffix=""):
    """Return the files of a folder that belong to the repository, relative to ``src``."""
    return {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / folder).rglob(f"*{suffix}")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Return the directory with both packages, built without the network."""
    built = tmp_path_factory.mktemp("packages")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(built), cwd=ROOT)
    return built


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(packages):
    (wheel,) = packages.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {name for folder in ("sprocketmq", "pyspark_rocketmq", "pyspark_rocketmq_store") for name in tracked(folder)}
    inside = {name for name in names if not name.startswith(f"sprocketmq-{__version__}.dist-info/")}
    assert inside == expected
    assert "sprocketmq/py.typed" in inside
    assert wheel.name == f"sprocketmq-{__version__}-py3-none-any.whl"


def test_the_sdist_has_what_builds_and_tests_it(packages):
    (sdist,) = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in tracked("sprocketmq")} <= names
    assert {"pyproject.toml", "Makefile", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "deploy/docker/Dockerfile"} <= names
    assert not [name for name in names if re.search(r"(^|/)(\.venv|__pycache__|\.hypothesis|\.mypy_cache)(/|$)", name)]


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_a_package_works_where_it_is_installed(packages, tmp_path, kind):
    (package,) = packages.glob(f"*.{kind}")
    # The other packages are those of this environment, so that nothing is downloaded.
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"),
        *("--disable-pip-version-check", "--target", str(tmp_path / "installed"), str(package)),
        cwd=tmp_path,
    )
    where = f"import sys, sprocketmq; sys.exit(not sprocketmq.__file__.startswith({str(tmp_path)!r}))"
    for program in (where, FIRST_STEPS):
        run(
            sys.executable,
            "-c",
            program,
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )


def test_the_notes_of_a_release_are_its_section_of_the_changelog():
    changelog = CHANGELOG.read_text(encoding="utf-8")
    notes = section(changelog, __version__)
    assert notes.startswith("### ")
    assert notes in changelog
    assert "\n## " not in notes
    with pytest.raises(LookupError, match=r"no section 99\.0, but 0\.1\.0"):
        section(changelog, "99.0")
