"""The images of the test cluster, really built by buildah from the project's Dockerfile on a base made here.

No registry is reached: the base is Debian's packages, made by mmdebstrap and tagged as the Dockerfile's own base. Every
image is kept as an archive named by the digest of what made it, so an unchanged one is built once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from realcluster.programs import JAEGER, PAUSE, CannotBuild, Module, build, cache_folder, only_one

REPOSITORY = Path(__file__).parents[3]
PAUSE_IMAGE = "localhost/prism-test/pause:1"
BASE_IMAGE = "localhost/prism-test/python:3.11-bookworm"
PREDICTOR_IMAGE = "localhost/prism-test/prism-predictor"
OPERATOR_IMAGE = "localhost/prism-test/prism-operator"
JAEGER_IMAGE = "localhost/prism-test/jaeger:1.76.0"
_BASE_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv", "libnuma1", "libstdc++6", "curl")
_SOURCES = ("Dockerfile", ".dockerignore", ".ci/image-environment", "pyproject.toml", "README.md", "CHANGELOG.md")
_TREES = ("service", "operator", "requirements")


@dataclass(frozen=True)
class Image:
    """An image: its name, and the archive that holds it."""

    name: str
    archive: Path


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _source_files() -> Iterable[Path]:
    yield from (REPOSITORY / name for name in _SOURCES)
    for tree in _TREES:
        for path in sorted((REPOSITORY / tree).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


def _run(*command: str, seconds: float = 1200, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=cwd, check=False)
    except FileNotFoundError as error:
        raise CannotBuild(
            f"{command[0]} is missing; install it (Debian: apt-get install buildah mmdebstrap)"
        ) from error
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(command[:6])} … failed: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout.strip()


@dataclass
class Images:
    """Builds images and keeps their archives in the cache folder."""

    folder: Path = field(default_factory=cache_folder)

    def pause(self) -> Image:
        """What holds a pod's namespaces open."""
        return self._of_program(PAUSE, PAUSE_IMAGE)

    def jaeger(self) -> Image:
        """Jaeger: OTLP in, its query API out."""
        return self._of_program(JAEGER, JAEGER_IMAGE)

    def operator(self) -> Image:
        """The Dockerfile's target `operator`."""
        return self._of_dockerfile("operator", OPERATOR_IMAGE, {})

    def predictor(self) -> Image:
        """The Dockerfile's target `predictor` without its libraries, which pods mount from the node."""
        return self._of_dockerfile("predictor", PREDICTOR_IMAGE, {"PREDICTOR_REQUIREMENTS": ""})

    def full_predictor(self) -> Image:
        """The Dockerfile's target `predictor` for a CPU, with everything in it (about 6 GB)."""
        arguments = {"PREDICTOR_REQUIREMENTS": "requirements/cpu.txt"}
        return self._of_dockerfile("predictor", PREDICTOR_IMAGE, arguments, tag="cpu")

    def base(self) -> Image:
        """A small Debian with Python, tagged like the Dockerfile's base."""
        archive = self.folder / f"base-{_digest(repr(_BASE_PACKAGES).encode(), self._suite().encode())}.tar"
        with only_one("base"):
            if not archive.exists():
                self._make_base(archive)
        return Image(BASE_IMAGE, archive)

    def _suite(self) -> str:
        return "bookworm"

    def _make_base(self, archive: Path) -> None:
        files = self.folder / "base-files.tar"
        unfinished = archive.with_suffix(".part")
        command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(_BASE_PACKAGES)}"]
        command += ["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*"]
        command += ["--dpkgopt=path-exclude=/usr/share/locale/*", self._suite(), str(files)]
        _run(*command)
        container = self._buildah("from", "scratch")
        try:
            self._buildah("add", container, str(files), "/")
            self._buildah("commit", container, BASE_IMAGE)
        finally:
            self._buildah("rm", container)
            files.unlink(missing_ok=True)
        self._save(BASE_IMAGE, unfinished)
        unfinished.rename(archive)

    def _of_program(self, module: Module, name: str) -> Image:
        binary = build(module) / module.binary
        archive = self.folder / f"image-{module.name}-{_digest(module.digest().encode(), name.encode())}.tar"
        with only_one(f"image-{module.name}"):
            if not archive.exists():
                container = self._buildah("from", "scratch")
                self._buildah("copy", container, str(binary), f"/{module.binary}")
                self._buildah("config", "--user", "65532:65532", "--entrypoint", f'["/{module.binary}"]', container)
                self._buildah("commit", "--rm", container, name)
                self._save(name, archive)
        return Image(name, archive)

    def _of_dockerfile(self, target: str, name: str, arguments: Mapping[str, str], tag: str = "test") -> Image:
        base = self.base()
        contents = [path.relative_to(REPOSITORY).as_posix().encode() + path.read_bytes() for path in _source_files()]
        digest = _digest(
            base.archive.name.encode(), target.encode(), repr(sorted(arguments.items())).encode(), *contents
        )
        archive, tagged = self.folder / f"image-{target}-{tag}-{digest}.tar", f"{name}:{tag}"
        with only_one(f"image-{target}"):
            if not archive.exists():
                self._ensure_base(base)
                self._bud(target, tagged, arguments)
                self._save(tagged, archive)
                self._forget_older(archive, f"image-{target}-{tag}-*.tar")
        return Image(tagged, archive)

    def _bud(self, target: str, name: str, arguments: Mapping[str, str]) -> None:
        command = ["bud", "--pull=never", "--isolation", "chroot", "--network", "host", "--layers", "--target", target]
        for key, value in {"PYTHON_BASE": BASE_IMAGE, "PREDICTOR_BASE": BASE_IMAGE, **arguments}.items():
            command += ["--build-arg", f"{key}={value}"]
        command += [*self._index_settings(), "-t", name, "-f", str(REPOSITORY / "Dockerfile"), str(REPOSITORY)]
        self._buildah(*command)

    def _index_settings(self) -> list[str]:
        """This machine's way to the package index: certificates and pip's own settings, seen by the build only."""
        options: list[str] = []
        for path in (
            "/etc/ssl/certs",
            "/usr/share/ca-certificates",
            "/usr/local/share/ca-certificates",
            "/etc/pip.conf",
        ):
            if Path(path).exists():
                options += ["-v", f"{path}:{path}:ro"]
        return options

    def _ensure_base(self, base: Image) -> None:
        if not self._buildah("images", "--quiet", "--filter", f"reference={BASE_IMAGE}"):
            self._buildah("pull", f"docker-archive:{base.archive}")

    def _save(self, name: str, archive: Path) -> None:
        unfinished = archive.with_name(f".{archive.name}.part")
        unfinished.unlink(missing_ok=True)
        self._buildah("push", name, f"docker-archive:{unfinished}:{name}")
        unfinished.rename(archive)

    def _forget_older(self, archive: Path, pattern: str) -> None:
        for other in self.folder.glob(pattern):
            if other != archive:
                other.unlink()

    def _buildah(self, *arguments: str) -> str:
        storage, run = self.folder / "containers", f"/run/prism-test-buildah-{os.getuid()}"
        return _run("buildah", "--root", str(storage), "--runroot", run, *arguments)


def missing_programs() -> list[str]:
    """Which of the programs that build images are missing."""
    return [name for name in ("buildah", "mmdebstrap") if shutil.which(name) is None]


def main() -> int:
    """Builds both images as users get them and says how large they are."""
    images = Images()
    for make in (images.operator, images.full_predictor):
        began = time.monotonic()
        try:
            image = make()
        except CannotBuild as why:
            print(f"PRISM: {why}", file=sys.stderr)
            return 1
        size = image.archive.stat().st_size / 1e9
        print(f"{image.name}: {size:.2f} GB, {time.monotonic() - began:.0f} s, {image.archive}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
