"""Names of data sets and the path of the data folder. Reads no data set and does not import torch."""

import os
from pathlib import Path

from pfl_core.options import did_you_mean

MEDMNIST = tuple(
    f"{kind}mnist" for kind in "path derma oct pneumonia retina breast blood tissue organa organc organs".split()
)
SINGLE = (  # in the order of `pfl data`; a test compares it with the catalogue
    "digits",
    "fashion_small",
    "synthetic_32k",
    "synthetic_3200",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "emnist",
    "femnist",
    "mini_imagenet",
    "office_home",
    *MEDMNIST,
)
COMBINED = ("cifar_mnist", "path_oct_tissue")  # named combinations; "a+b" combines any sets
REFUSED = {
    "chestmnist": "is multi-label: an image has 14 yes/no labels, and the methods need one class per image",
    **{
        f"{kind}mnist3d": "has volumes, and the networks take images"
        for kind in ("organ", "nodule", "adrenal", "fracture", "vessel", "synapse")
    },
}


def data_dir(folder: str | Path | None = None) -> Path:
    """The data folder: `folder`, else PFL_DATA_DIR, else data/ in the repository (installed: the working folder)."""
    folder = folder if folder is not None else os.environ.get("PFL_DATA_DIR") or None
    if folder is not None:
        return Path(folder).expanduser()
    root = Path(__file__).parents[2]
    return (root if (root / "pyproject.toml").is_file() else Path.cwd()) / "data"


def is_name(name: str) -> bool:
    """Whether ``name`` has only letters, digits, - and _, so that it cannot be a path outside the data folder."""
    return name.replace("_", "").replace("-", "").isalnum()


def npz_names(folder: Path) -> list[str]:
    """Names of the .npz files in the data folder that can be loaded as data sets."""
    stems = sorted(path.stem for path in folder.glob("*.npz") if path.is_file())
    return [stem for stem in stems if is_name(stem) and stem not in (*REFUSED, *COMBINED)]


def check_name(name: str, folder: Path) -> None:
    """Raise ValueError for a name that is neither known nor a file; for "a+b", each part is checked."""
    if ":" in name or name in COMBINED:
        return
    if "+" in name:
        for part in name.split("+"):
            check_name(part, folder)
    elif not is_name(name):
        raise ValueError(
            f"data set {name!r} is not a valid name; use letters, digits, - and _, 'a+b' or 'module:function'"
        )
    elif name in REFUSED:
        raise ValueError(f"data set {name!r} {REFUSED[name]}; choose one of {', '.join(MEDMNIST)}")
    elif name not in SINGLE and not (folder / f"{name}.npz").is_file():
        known = (*SINGLE, *COMBINED, *npz_names(folder))
        raise ValueError(
            f"data set {name!r} is unknown{did_you_mean(name, known)} and {folder} has no {name}.npz; "
            "`pfl data` lists all; 'a+b' joins two, and 'module:function' is a data set of your own"
        )
