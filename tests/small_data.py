"""Small data sets in the formats of the real ones."""

import gzip
from pathlib import Path

import numpy as np


def write_words(root: Path, name: str = "ptb.{}.txt", words: int = 400) -> Path:
    """A text of ten words, ``words`` to train and half as many to validate and test."""
    random = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", words), ("valid", words // 2), ("test", words // 2)):
        numbers = [*range(9), *random.integers(9, size=count - 9)]
        lines = [" ".join(f"w{n}" for n in numbers[i : i + 7]) for i in range(0, count, 7)]
        (root / name.format(part)).write_text("\n".join(lines) + "\n")
    return root


def write_ucr(root: Path, name: str = "CBF", length: int = 12, labels: tuple[int, ...] = (1, 3)) -> Path:
    """Ten training and six test series of each label."""
    random = np.random.default_rng(0)
    (root / name).mkdir(parents=True, exist_ok=True)
    for part, count in (("TRAIN", 10), ("TEST", 6)):
        rows = [[label, *random.normal(size=length).round(4)] for label in labels for _ in range(count)]
        text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
        (root / name / f"{name}_{part}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return root


def write_multilabel(root: Path, name: str = "bibtex", sparse: bool = True, features: int = 6) -> Path:
    """Twenty training and ten test samples with three labels."""
    random = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    tags = "".join(f'<label name="T{i}"></label>\n' for i in range(3))
    xml = f'<?xml version="1.0"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n{tags}</labels>'
    (root / f"{name}.xml").write_text(xml)
    header = [f"@relation {name}", ""]
    header += [f"@attribute F{i} numeric" for i in range(features)]
    header += [f"@attribute T{i} {{0,1}}" for i in range(3)]
    for part, count in (("train", 20), ("test", 10)):
        values = random.integers(2, size=(count, features + 3))
        if sparse:
            rows = ["{" + ",".join(f"{i} 1" for i in np.flatnonzero(row)) + "}" for row in values]
        else:
            rows = [",".join(map(str, row)) for row in values]
        (root / f"{name}-{part}.arff").write_text("\n".join([*header, "", "@data", *rows]) + "\n")
    return root
