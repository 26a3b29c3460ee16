"""Helm as a user runs it, with values from a file."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


class HelmFailed(Exception):
    """Helm did not do what it was asked; the message says what it said."""


@dataclass(frozen=True)
class Helm:
    """The real Helm against one API server."""

    binary: Path
    kubeconfig: Path
    home: Path
    """Where Helm keeps its own files."""

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None, seconds: float = 300) -> str:
        """Runs Helm and returns what it wrote; values go into a file, as users write them."""
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=self.home) as file:
            command = [str(self.binary), *arguments, "--kubeconfig", str(self.kubeconfig)]
            if values is not None:
                yaml.safe_dump(dict(values), file)
                file.flush()
                command += ["-f", file.name]
            environment = {**os.environ, "HOME": str(self.home)}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, env=environment, check=False
            )
        if done.returncode != 0:
            raise HelmFailed(f"helm {' '.join(arguments)}: {(done.stdout + done.stderr).strip()[-2500:]}")
        return done.stdout

    def releases(self, namespace: str) -> dict[str, str]:
        """The releases of a namespace with their state."""
        listed = json.loads(self.run("list", "-n", namespace, "-a", "-o", "json"))
        return {release["name"]: release["status"] for release in listed}
