"""Rules of the checkout that no single module could keep."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def _run(repository: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(repository / folder) for folder in ("service", "operator"))
    environment = {**os.environ, "PYTHONPATH": paths, "UV_OFFLINE": "1"}
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)


def test_import_contracts_are_kept(repository: Path) -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    if not linter.exists():
        pytest.skip("import-linter is not installed here")
    done = _run(repository, str(linter), "--no-logo", "--no-cache")
    assert done.returncode == 0, done.stdout


def test_requirements_were_written_from_this_pyproject(repository: Path) -> None:
    signatures = {
        path.read_text().splitlines()[1]
        for path in (repository / "requirements").glob("*.txt")
        if path.stem not in ("uv", "contextpilot")
    }
    code = "import runpy; print(runpy.run_path('.ci/lock')['signature']())"
    assert signatures == {_run(repository, sys.executable, "-c", code).stdout.strip()}


def test_requirements_name_no_package_index(repository: Path) -> None:
    for path in (repository / "requirements").glob("*.txt"):
        assert not re.search(r"https?://|--index|--find-links", path.read_text()), path.name


def test_media_libraries_that_break_on_a_processor_are_left_out(repository: Path) -> None:
    for path in (repository / "requirements").glob("*.txt"):
        assert not re.search(r"^torch(vision|audio|codec)==", path.read_text(), re.MULTILINE), path.name


def test_operator_folder_does_not_shadow_the_standard_library(repository: Path) -> None:
    assert not (repository / "operator" / "__init__.py").exists()
    assert not (repository / "tests" / "operator").exists()


def test_help_imports_no_engine(repository: Path) -> None:
    code = (
        "import sys\nfrom prism.__main__ import app\nfrom typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(sorted({'vllm', 'torch', 'kserve', 'matplotlib'} & set(sys.modules)))"
    )
    assert _run(repository, sys.executable, "-c", code).stdout.strip() == "[]"
