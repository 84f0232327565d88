"""The table of contents: every dataset, every kind of own data, and the functions the rest of pflbench calls."""

from __future__ import annotations

from pathlib import Path

from pflbench import plugins
from pflbench.data.agnews import AGNEWS
from pflbench.data.base import Arrays, Dataset, Defaults, Finding, Progress, Source, default_root
from pflbench.data.content import Content, of_arrays
from pflbench.data.digits import DIGITS
from pflbench.data.domains import DOMAINS
from pflbench.data.folder import FOLDER
from pflbench.data.har import HAR
from pflbench.data.leaf import LEAF
from pflbench.data.npz import NPZ
from pflbench.data.table import CSV
from pflbench.data.tiny import TINY
from pflbench.data.vision import CIFAR10, CIFAR100, EMNIST, FASHIONMNIST, MNIST
from pflbench.errors import NoData, UserError, unknown
from pflbench.plugins import datasets as own
from pflbench.plugins.datasets import PYTHON
from pflbench.spec import DataSpec

__all__ = ["PYTHON", "Arrays", "Content", "Dataset", "Defaults", "Finding", "Progress", "Source", "default_root"]

DATASETS: dict[str, Dataset] = {d.name: d for d in (DIGITS, MNIST, FASHIONMNIST, EMNIST, CIFAR10, CIFAR100, TINY, AGNEWS, HAR)}
SOURCES: dict[str, Source] = {s.name: s for s in (FOLDER, DOMAINS, NPZ, CSV, LEAF, PYTHON)}


def parse(text: str, root: Path) -> DataSpec:
    """A dataset's name, with a variant behind a colon or not, or own data: `folder:PATH`, `npz:PATH`, `csv:PATH`,
    `leaf:PATH`, `domains:PATH@SIZE`, `FILE.py:NAME`.

    All data are read once for the hash of their content. It stands in the specification unless it is a dataset's official
    content; where a dataset is missing or corrupt, which `load` tells, that is what is meant. Raises UserError for an unknown
    name or variant and for an absent path.
    """
    if (at := own.place(text)) is not None:
        plugins.named("dataset", text, text in DATASETS or text in SOURCES)
        return DataSpec(name=PYTHON.name, path=at, content=PYTHON.content(Path(at), root, None))
    name, _, rest = text.partition(":")
    if name in SOURCES:
        return _own(SOURCES[name], rest, root)
    spec = named(text)
    try:
        found = identify(spec, root)
    except UserError:
        return spec
    return spec if found is None else spec.model_copy(update={"content": found.in_key})


def names() -> list[str]:
    """All datasets that have a name: built-in ones, then those of installed packages."""
    return [*DATASETS, *(one.name for one in plugins.installed("dataset"))]


def named(text: str) -> DataSpec:
    """A dataset's name in any case, with a variant or not, whatever the data folder holds. Raises UserError for unknown ones."""
    text = text if text.partition(":")[0] in names() else text.lower()
    name, _, variant = text.partition(":")
    dataset = _dataset(name)
    if variant and not dataset.variants:
        raise UserError(f"'{name}' has no variants, so no '{variant}'.", f"Write just '{name}'.")
    if variant and variant not in dataset.variants:
        raise unknown(f"variant of {name}", variant, dataset.variants)
    return DataSpec(name=name, variant=variant or dataset.variant)


def identify(spec: DataSpec, root: Path, progress: Progress | None = None) -> Content | None:
    """What the files of a named dataset hold, and whether that is the official content; None of the embedded one.

    Raises UserError where data are missing or corrupt.
    """
    dataset = _dataset(spec.name)
    with dataset.whole(root, spec.variant):
        return dataset.content(root, spec.variant, progress)


def load(spec: DataSpec, root: Path, progress: Progress | None = None) -> Arrays:
    """The whole dataset, train first, in stored order.

    Raises UserError where data are missing or corrupt, or where they are not, or no longer, those that `spec` was made of.
    """
    if spec.path is None:
        found, dataset = identify(spec, root, progress), _dataset(spec.name)
        if found is not None and found.in_key != spec.content:
            wanted = f"the content {spec.content[:6]}" if spec.content else "the official content"
            raise UserError(
                f"The data of '{spec.named}' in {root} are not those of this run: it wants {wanted}, they hold {found.hash[:6]}.",
                "Put those back, or start a new run: its results will stand apart.",
            )
        with dataset.whole(root, spec.variant):
            return dataset.read(root, spec.variant, progress)
    source, path = SOURCES[spec.name], Path(spec.path)
    _must_exist(source, path)
    if spec.content is not None and source.content(path, root, progress) != spec.content:
        raise UserError(
            f"{path} is not what it was: its content differs from that of the specification.",
            "Restore it, or start a new run: its results will stand apart from those of the old content.",
        )
    return source.load(path, root, progress)


def remark(spec: DataSpec, root: Path) -> str | None:
    """What to say of a dataset that is not known to be the official content; None where there is nothing to say."""
    if spec.path is not None or spec.content is None or (found := identify(spec, root)) is None:
        return None
    if not DATASETS[spec.name].checksum_known:
        return (
            f"No published checksum of {spec.named} is known: nothing tells whether {root} holds the official content. "
            f"Runs are told apart by what it holds ({found.hash[:6]}: {found.detail})."
        )
    return (
        f"{spec.named} in {root} has other content than the official files ({found.hash[:6]}: {found.detail}). "
        "Runs on it are kept apart from runs on the official files."
    )


def record(spec: DataSpec, root: Path, arrays: Arrays) -> dict[str, str]:
    """What a run's record has of its data: the hash of their content, and what they are. arrays: as loaded."""
    if spec.path is not None:
        code = {"code": own.code(Path(spec.path))} if spec.name == PYTHON.name else {}
        return {"hash": spec.content or "", "state": "own", **code}
    found = identify(spec, root)
    if found is None:
        return {"hash": of_arrays(arrays)[0], "state": "official"}
    return {"hash": found.hash, "state": found.state}


def require_alike(spec: DataSpec, shape: tuple[int, ...], classes: int, place: str) -> None:
    """Raises UserError where samples of this shape, of so many classes, cannot be those of a dataset.

    place: where they are, in words.
    """
    dataset = _dataset(spec.name)
    own = dataset.variants.get(spec.variant or "", dataset.classes)
    if dataset.shape is None:
        raise UserError(
            f"{place} holds numbers {_by(shape)}; '{spec.named}' is text, and PFLlib's text folders are not supported.",
            f"Leave -p pfllib away: -d {spec.named}, or own texts as -d csv:PATH.",
        )
    if (shape, classes) != (dataset.shape, own):
        raise UserError(
            f"{place} holds samples {_by(shape)} of {classes} classes; '{spec.named}' has {_by(dataset.shape)} of {own} classes.",
            "Name with -d the dataset that the folder holds.",
        )


def verify(text: str, root: Path) -> list[Finding]:
    """Looks at every file of a dataset, named as in `named`."""
    spec = named(text)
    return DATASETS[spec.name].verify(root, spec.variant)


def missing_size(text: str, root: Path, progress: Progress | None = None) -> str:
    """The size of the download, as text, of a dataset whose files are missing; "" of any other."""
    if own.place(text) is not None or text.partition(":")[0] in SOURCES:
        return ""
    try:
        identify(named(text), root, progress)
    except NoData:
        return DATASETS[named(text).name].size
    except UserError:  # unknown or damaged, which `parse` and `load` report
        pass
    return ""


def download(text: str, root: Path, progress: Progress | None = None) -> None:
    """Fetches what is missing or corrupt. Raises UserError where that fails; then nothing incomplete is in place."""
    spec = named(text)
    DATASETS[spec.name].fetch(root, spec.variant, progress)


def defaults(spec: DataSpec, root: Path) -> Defaults:
    """The paper's settings for a dataset; sensible ones for own data."""
    return DATASETS[spec.name].defaults if spec.path is None else SOURCES[spec.name].defaults(Path(spec.path), root)


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _dataset(name: str) -> Dataset:
    if name == "pfllib":
        raise UserError("'pfllib:PATH' is a partition that brings its data, no dataset.", "Write -p pfllib:PATH.")
    if name not in DATASETS:
        kinds = (f"{source}:PATH" for source in SOURCES if source != PYTHON.name)
        raise unknown("dataset", name, [*names(), *kinds, "FILE.py:NAME"])
    return DATASETS[name]


def _own(source: Source, text: str, root: Path) -> DataSpec:
    if not text:
        raise UserError(f"'{source.name}:' needs a path.", f"For example {source.name}:path/to/data.")
    path = Path(text).expanduser().absolute()
    path = path.resolve() if ".." in path.parts else path
    _must_exist(source, path)
    return DataSpec(name=source.name, path=str(path), content=source.content(path, root, None))


def _must_exist(source: Source, path: Path) -> None:
    if source is not PYTHON and not source.place(path).exists():
        raise UserError(f"{source.place(path)} does not exist.", f"{source.name}:PATH expects {source.title}.")
