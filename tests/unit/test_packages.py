"""Sdist and wheel: complete, nothing too much, and at work where nothing of the repository is in reach."""

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from deploy.dist import CLIENT_LIMIT, CLIENT_STEPS, FIRST_STEPS, client_sources, size
from deploy.package_page import absolute
from deploy.release_notes import CHANGELOG, section

from sprocketmq import __version__, errors
from sprocketmq.embedded import LocalCluster
from sprocketmq.protocol import compression

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


def page_of(wheel):
    """Return what a package index shows of a wheel: the links to the repository, and the README."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    return urls, metadata.get_payload(decode=True).decode()


@pytest.mark.parametrize("distribution", ["sprocketmq", "sprocketmq-client"])
def test_a_release_shows_a_readme_whose_links_lead_to_its_tag(tmp_path, distribution):
    sources = ROOT if distribution == "sprocketmq" else client_sources(tmp_path / "sources")
    on_github = os.environ | {"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "some/where", "GITHUB_REF_NAME": "v1.2"}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(sources), cwd=tmp_path, env=on_github)
    (wheel,) = tmp_path.glob("*.whl")
    urls, shown = page_of(wheel)
    assert urls == {
        "Source": "https://git.example/some/where",
        "Documentation": "https://git.example/some/where/blob/v1.2/docs/guide/getting-started.md",
        "Changelog": "https://git.example/some/where/blob/v1.2/CHANGELOG.md",
        "Issues": "https://git.example/some/where/issues",
    }
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|href)=[\"']([^\"']*)", shown)
    assert len(targets) > 20
    for target in ("".join(pair) for pair in targets):
        assert target.startswith(("https://", "#")), target
        if target.startswith("https://git.example"):
            kind, _, path = target.removeprefix("https://git.example/some/where/").partition("/v1.2/")
            assert kind == ("raw" if path.endswith((".svg", ".png", ".gif")) else "blob"), target
            assert (ROOT / path.partition("#")[0]).exists(), target


def test_a_package_that_is_built_elsewhere_names_no_repository(client_wheel):
    urls, shown = page_of(client_wheel)
    assert urls == {}
    assert shown.strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_links_around_images_and_links_of_their_own_are_told_apart():
    text = "[![demo](docs/demo.gif)](docs/demo.md) [home](https://example.org) [below](#below) ![a](b.svg) [c](d/e.md#f)"
    assert absolute(text, "https://h/o/r", "v1") == (
        "[![demo](https://h/o/r/raw/v1/docs/demo.gif)](https://h/o/r/blob/v1/docs/demo.md) [home](https://example.org) [below](#below)"
        " ![a](https://h/o/r/raw/v1/b.svg) [c](https://h/o/r/blob/v1/d/e.md#f)"
    )


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


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory):
    """Return the wheel of sprocketmq-client, built without the network."""
    where = tmp_path_factory.mktemp("client")
    sources = client_sources(where / "sources")
    elsewhere = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(where), str(sources), cwd=where, env=elsewhere)
    (wheel,) = where.glob("*.whl")
    return wheel


def installed_client(wheel, where):
    """Unpack the wheel beside the libraries that it names, and return a Python that sees nothing else."""
    zipfile.ZipFile(wheel).extractall(where)
    (where / "msgspec").symlink_to(Path(msgspec.__file__).parent)
    return sys.executable, "-S", "-B"


def test_the_client_distribution_has_the_parts_of_the_client_and_nothing_of_the_rest(client_wheel):
    names = set(zipfile.ZipFile(client_wheel).namelist())
    parts = {name.split("/")[1] for name in names if name.startswith("sprocketmq/") and not name.endswith("/__init__.py")}
    assert {part for part in parts if not part.endswith(".py")} == {"client", "net", "otel", "protocol", "sync", "py.typed"}
    assert {name for folder in ("client", "net", "otel", "protocol", "sync") for name in tracked(f"sprocketmq/{folder}")} <= names
    assert client_wheel.name == f"sprocketmq_client-{__version__}-py3-none-any.whl"


def test_the_client_distribution_needs_msgspec_only_and_stays_small(client_wheel, tmp_path):
    python = installed_client(client_wheel, tmp_path)
    with LocalCluster() as mq:
        run(*python, "-c", CLIENT_STEPS, mq.namesrv, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    bytecode = 2  # as large as the source again
    assert size(tmp_path) * bytecode + size(tmp_path / "msgspec") < CLIENT_LIMIT


EVERY_MODULE = """
import pkgutil, sprocketmq
from importlib import import_module
from sprocketmq.errors import PartNotInstalled

absent = set()
def walk(package):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name in ("sprocketmq.otel", "sprocketmq.__main__"):
            continue
        try:
            found = import_module(module.name)
        except PartNotInstalled as e:
            assert e.part == module.name, (module.name, e)
            absent.add(e.part)
        else:
            module.ispkg and walk(found)
walk(sprocketmq)
print(*sorted(absent))
"""


def test_every_module_of_the_client_distribution_imports_without_the_others(client_wheel, tmp_path):
    python = installed_client(client_wheel, tmp_path)
    absent = run(*python, "-c", EVERY_MODULE, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}).split()
    folders = {path.parent.name for path in (ROOT / "src/sprocketmq").glob("*/__init__.py")}
    assert absent == sorted(f"sprocketmq.{name}" for name in folders - {"client", "net", "otel", "protocol", "sync"})


def test_the_client_distribution_says_what_to_install(client_wheel, tmp_path):
    python = installed_client(client_wheel, tmp_path)
    for arguments, advice in (
        (("-m", "sprocketmq"), "sprocketmq: sprocketmq.cli is not installed: pip uninstall -y sprocketmq-client && pip install sprocketmq"),
        (("-c", "import sprocketmq.otel"), "OpenTelemetry, which sprocketmq.otel needs, is not installed: pip install opentelemetry-api"),
        (
            ("-c", "from sprocketmq import Producer; Producer('pg', compression='zstd')"),
            "the compression library zstandard is not installed: pip install zstandard",
        ),
    ):
        done = subprocess.run(
            [*python, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].removeprefix("sprocketmq.errors.PartNotInstalled: ") == advice


@pytest.mark.parametrize("kind", [compression.CompressionType.LZ4, compression.CompressionType.ZSTD])
def test_a_compressed_body_without_its_library_says_what_to_install(monkeypatch, kind):
    body = compression.compress(b"an order", kind)
    monkeypatch.setattr(compression, "import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError(name)))
    with pytest.raises(errors.PartNotInstalled, match=r"is not installed: pip install (lz4|zstandard)$") as e:
        compression.decompress(body, compression.compression_flag(kind))
    assert isinstance(e.value, ImportError)


def test_the_notes_of_a_release_are_its_section_of_the_changelog():
    changelog = CHANGELOG.read_text(encoding="utf-8")
    notes = section(changelog, __version__)
    assert changelog.partition(f"\n## {__version__} ")[2].partition("\n\n")[2].startswith(notes)
    assert "\n### " in notes
    assert "\n## " not in notes
    with pytest.raises(LookupError, match=r"no section 99\.0, but 0\.1\.0"):
        section(changelog, "99.0")
