"""Which samples train, validate and test: by counts, shares or files of numbers, in the order of the files or drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geomano_hpc.errors import ConfigError, DataError

Size = int | float | Path | None  # a count, a share, a file of numbers, or what the others leave
NAMES = ("train", "validation", "test")


@dataclass(frozen=True)
class SplitRule:
    """Training samples are the first ones, test samples the last ones, validation samples those before the test's;
    with a seed, after the samples were shuffled by it."""

    train: Size = None
    validation: Size = None
    test: Size = None
    seed: int | None = None

    def indices(self, samples: int, what: str = "samples") -> dict[str, np.ndarray]:
        """The numbers of the samples of each split, ascending. No sample is in two."""
        files = {name: size for name in NAMES if isinstance(size := getattr(self, name), (Path, str))}
        if files:
            return self._from_files(files, samples)
        sizes = self._counts(samples, what)
        order = np.arange(samples)
        if self.seed is not None:
            order = np.random.default_rng(self.seed).permutation(samples)
        last = samples - sizes["test"]
        parts = {
            "train": order[: sizes["train"]],
            "validation": order[last - sizes["validation"] : last],
            "test": order[last:],
        }
        return {name: np.sort(part) for name, part in parts.items() if len(part)}

    def _counts(self, samples: int, what: str) -> dict[str, int]:
        """What is not said: a tenth each validates and tests; else the training or the test has what is left."""
        asked = {name: size for name in NAMES if (size := getattr(self, name)) is not None}
        if asked:
            counts = _counts_of({name: size for name, size in asked.items() if not isinstance(size, Path)}, samples)
        else:
            counts = {"validation": max(samples > 2, samples // 10), "test": max(1, samples // 10)}
        counts.setdefault("validation", 0)
        for name in ("train", "test"):
            counts.setdefault(name, samples - sum(counts.values()))
        words = ", ".join(f"--{name} {size}" for name, size in asked.items()) or "one to train and one to test"
        needed = sum(max(count, 1) if name != "validation" else count for name, count in counts.items())
        if needed > samples:
            raise DataError(f"{samples} {what} are there, {max(needed, 2)} are needed ({words})")
        for name in ("train", "test"):
            if counts[name] < 1:
                raise DataError(f"of {samples} {what} none is left to {name} ({words}); at least one is needed")
        return counts

    def _from_files(self, files: dict[str, Path | str], samples: int) -> dict[str, np.ndarray]:
        if self.seed is not None:
            raise ConfigError("--shuffle-seed: the files of numbers say which samples are in each split; leave it out")
        if set(files) < {name for name in NAMES if getattr(self, name) is not None} or "train" not in files:
            raise ConfigError("--train, --validation, --test: give files of numbers for all of them, or for none")
        found = {name: _numbers(Path(file), samples) for name, file in files.items()}
        if "test" not in found:
            raise ConfigError("--test: give a file of numbers for it, too")
        seen: dict[int, str] = {}
        for name, numbers in found.items():
            for number in numbers.tolist():
                if number in seen:
                    raise DataError(f"{files[name]}: sample {number} is in {seen[number]} already")
                seen[number] = name
        return {name: np.sort(numbers) for name, numbers in found.items()}


def _counts_of(sizes: dict[str, int | float], samples: int) -> dict[str, int]:
    """Shares are cut where their sum is, so that those that add up to 1 take every sample, whatever is rounded."""
    for name, asked in sizes.items():
        _count(asked, samples, name)
    if sum(size for size in sizes.values() if isinstance(size, float)) > 1 + 1e-9:
        raise ConfigError(
            "the shares of " + ", ".join(f"--{name} {size}" for name, size in sizes.items()) + " exceed 1"
        )
    counts, before = {}, 0.0
    for name in NAMES:
        size = sizes.get(name)
        if isinstance(size, float):
            counts[name] = round((before + size) * samples) - round(before * samples)
            before += size
        elif size is not None:
            counts[name] = _count(size, samples, name)
    return counts


def _count(size: int | float, samples: int, name: str) -> int:
    if not (size >= 0) or (isinstance(size, float) and size > 1):
        raise ConfigError(
            f"--{name} {size!r} of the samples: give a count, a share between 0 and 1, or a file of numbers"
        )
    return size if isinstance(size, int) else round(size * samples)


def _numbers(file: Path, samples: int) -> np.ndarray:
    """Of samples, from 0 on: a .npy file, or a text file with one on each line."""
    try:
        values = (
            np.load(file, allow_pickle=False) if file.suffix == ".npy" else np.loadtxt(file, dtype=np.int64, ndmin=1)
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as numbers of samples ({error})") from error
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise DataError(f"{file}: expected whole numbers of samples, found {values.dtype} of shape {values.shape}")
    outside = values[(values < 0) | (values >= samples)]
    if len(outside):
        raise DataError(f"{file}: sample {outside[0]} is not there; the raw files have {samples}, counted from 0")
    return values.astype(np.int64)


def parse_size(text: str | None, option: str) -> Size:
    """`100`, `0.8`, `80%`, or a file."""
    if text is None:
        return None
    if Path(text).is_file():
        return Path(text)
    try:
        if text.endswith("%"):
            return float(text[:-1]) / 100
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        raise ConfigError(
            f"{option} {text}: neither a count such as 100, a share such as 0.8 or 80%, nor a file that is there"
        ) from None


def split_of_files(roles: Sequence[str], counts: Sequence[int], rule: SplitRule) -> dict[str, np.ndarray]:
    """Where each raw file has a split of its own: its samples, or the first so many of them."""
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    found: dict[str, np.ndarray] = {}
    for name in NAMES:
        numbers = [
            np.arange(first, first + count)
            for role, first, count in zip(roles, firsts, counts, strict=True)
            if role == name
        ]
        if not numbers:
            continue
        together = np.concatenate(numbers)
        size = getattr(rule, name)
        if isinstance(size, Path):
            raise ConfigError(f"--{name} {size}: the split has files of its own; leave the file of numbers out")
        wanted = len(together) if size is None else _count(size, len(together), name)
        if wanted > len(together):
            raise DataError(f"{len(together)} samples are there to {name}, {wanted} are needed (--{name} {size})")
        if rule.seed is not None:
            together = np.random.default_rng(rule.seed).permutation(together)
        if wanted < 1 and name != "validation":
            raise DataError(
                f"--{name} {size}: none of {len(together)} samples is left to {name}; at least one is needed"
            )
        found[name] = np.sort(together[:wanted])
    return found
