"""KServe's own CRDs: every manifest in these tests passes through them."""

from __future__ import annotations

import os
import tarfile
import urllib.request
from pathlib import Path
from urllib.error import URLError

from realcluster.programs import CannotBuild, cache_folder, only_one

KSERVE_VERSION = "0.21.0"
_REPOSITORY = Path(__file__).parents[3]
_RELEASE = f"https://github.com/kserve/kserve/archive/refs/tags/v{KSERVE_VERSION}.tar.gz"
_WANTED = ("inferenceservices", "servingruntimes", "clusterservingruntimes", "llminferenceservices")


def crd_folder() -> Path:
    """The folder with the CRDs of the KServe version that the predictor is made for.

    `PRISM_KSERVE_CRDS` names it; else it stands beside the checkout; else the release is downloaded once.
    """
    named = os.environ.get("PRISM_KSERVE_CRDS")
    for folder in [Path(named)] if named else [_REPOSITORY.parent / "shared" / "kserve" / "crds"]:
        if (folder / "serving.kserve.io_inferenceservices.yaml").is_file():
            return folder
    if named:
        raise CannotBuild(f"PRISM_KSERVE_CRDS names {named}, where serving.kserve.io_inferenceservices.yaml is not")
    return _downloaded()


def _downloaded() -> Path:
    folder = cache_folder() / f"kserve-{KSERVE_VERSION}"
    with only_one("kserve"):
        if not folder.is_dir():
            archive = folder.with_suffix(".tar.gz")
            try:
                urllib.request.urlretrieve(_RELEASE, archive)
            except URLError as error:
                raise CannotBuild(
                    f"KServe {KSERVE_VERSION} could not be fetched ({error.reason}); set PRISM_KSERVE_CRDS to a folder "
                    "with its config/crd/full"
                ) from error
            _unpack(archive, folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    unfinished = folder.with_suffix(".part")
    unfinished.mkdir(exist_ok=True)
    with tarfile.open(archive) as release:
        for member in release.getmembers():
            name = Path(member.name)
            wanted = name.name.startswith("serving.kserve.io_") and name.stem.split("_")[-1] in _WANTED
            if wanted and "crd/full" in member.name:
                source = release.extractfile(member)
                assert source is not None
                (unfinished / name.name).write_bytes(source.read())
    unfinished.rename(folder)
