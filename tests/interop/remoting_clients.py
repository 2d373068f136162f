"""Programs with Apache's clients for Go and C++, which speak the remoting protocol as the Java client does."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop import apache

HERE = Path(__file__).parent
GO = HERE / "go"
CPP = HERE / "cpp" / "program.py"
# The package for Python whose wheel brings the client for C++; it needs no other.
CPP_PACKAGE = "rocketmq==0.4.4"


def go_program() -> Path:
    """Return the program that uses the client for Go, which go builds when it has changed. Raises ApacheUnavailable."""
    source = b"".join(file.read_bytes() for file in sorted(GO.iterdir()))
    directory = apache.cache_dir().with_name("rocketmq-client-go-2.1.2")
    program = directory / f"program-{hashlib.sha256(source).hexdigest()[:16]}"
    with apache.locked(directory / "lock"):
        if program.exists():
            return program
        with tempfile.TemporaryDirectory(dir=directory) as build:
            shutil.copytree(GO, build, dirs_exist_ok=True)
            for command in (["mod", "tidy"], ["build", "-o", str(program), "."]):  # tidy writes go.sum
                arguments = [apache.tool("go"), *command]
                done = subprocess.run(arguments, cwd=build, capture_output=True, text=True, timeout=600, check=False)
                if done.returncode != 0:
                    raise apache.ApacheUnavailable(f"go could not build a program with Apache's client for Go:\n{done.stderr[-2000:]}")
    return program


def cpp_python() -> Path:
    """Return the Python of an environment that has the client for C++, made the first time. Raises ApacheUnavailable."""
    directory = apache.cache_dir().with_name(f"rocketmq-client-cpp-{sys.version_info.major}.{sys.version_info.minor}")
    python = directory / "bin" / "python"
    with apache.locked(directory.with_name(f"{directory.name}.lock")):
        if not (directory / "installed").exists():
            venv.create(directory, with_pip=True, clear=True)
            command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", CPP_PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                raise apache.ApacheUnavailable(f"pip could not bring Apache's client for C++:\n{done.stderr[-2000:]}")
            (directory / "installed").touch()
    return python


def run_go(program: Path, *arguments: object, messages: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Run the program for Go, and return what it says; a message to send is a mapping of body, tag, keys, properties, delay_level."""
    encoded = [{**one, "body": base64.b64encode(one["body"]).decode()} for one in messages]
    lines = _run([str(program), *map(str, arguments)], "".join(json.dumps(one) + "\n" for one in encoded))
    return [{**line, "body": base64.b64decode(line["body"])} if "body" in line else line for line in lines]


def run_cpp(python: Path, home: Path, *arguments: object) -> list[list[Any]]:
    """Run the program for C++, whose logs go below ``home``, and return what it says."""
    return _run([str(python), str(CPP), *map(str, arguments)], "", home)


def _run(command: list[str], said: str, home: Path | None = None) -> list[Any]:
    environment = {**os.environ, **({} if home is None else {"HOME": str(home)})}
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=200, check=False, env=environment)
    if done.returncode != 0:
        raise apache.ApacheFailed(f"{command[:3]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] in "{["]
