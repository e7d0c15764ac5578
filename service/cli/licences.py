"""The licences of what is installed, and those that are allowed here."""

import re
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from typing import Any, Final

# By SPDX identifier. Those of the last line ask something of whoever changes the library itself;
# here libraries are used as they are published.
ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "HPND", "ISC", "MIT",
        "MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
        "LGPL-3.0-only", "LGPL-3.0-or-later", "MPL-2.0",
    }
)  # fmt: skip
UNKNOWN: Final = "unknown"
# What packages say that do not say it in SPDX yet, beginning with what is most exact.
_SPOKEN: Final = (
    (r"Apache(?: Software)?(?: License)?,?(?: Version)? ?-?(?:2(?:\.0)?)?", "Apache-2.0"),
    (r"(?:The )?MIT(?: License)?", "MIT"),
    (r"(?:BSD 3-Clause|3-Clause BSD|New BSD|Modified BSD)(?: License)?", "BSD-3-Clause"),
    (r"(?:BSD 2-Clause|Simplified BSD)(?: License)?", "BSD-2-Clause"),
    (r"ISC License(?: \(ISCL\))?", "ISC"),
    (r"Mozilla Public License 2\.0(?: \(MPL 2\.0\))?", "MPL-2.0"),
    (r"Python Software Foundation License", "PSF-2.0"),
    (r"BSD(?: License)?", "BSD-3-Clause"),  # which of them it is makes no difference here
)
_CLASSIFIER: Final = "License :: OSI Approved :: "
# How the file of a licence begins, and what else is in it, where a package only has the file.
_MIT: Final = re.compile(
    r"\s*(?:The )?MIT License\b.*Permission is hereby granted, free of charge,", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Package:
    """A package of this environment."""

    name: str
    version: str
    licence: str  # an SPDX expression, or what the package says
    allowed: bool


def installed() -> list[Package]:
    """Every package that is installed here, by name."""
    found = {one.name.lower(): one for one in map(_package, distributions())}
    return [found[name] for name in sorted(found)]


def _package(distribution: Distribution) -> Package:
    licence = licence_of(distribution.metadata)
    if licence == UNKNOWN:
        licence = _of_file(distribution)
    return Package(distribution.name, distribution.version, licence, is_allowed(licence))


def _of_file(distribution: Distribution) -> str:
    """The licence of a package that only has it as a file."""
    for name in distribution.metadata.get_all("License-File") or ():
        if _MIT.match(distribution.read_text(f"licenses/{name}") or ""):
            return "MIT"
    return UNKNOWN


def licence_of(metadata: Any) -> str:
    """What a package says of its licence: an expression, else a word, else all its classifiers."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    text = str(metadata.get("License") or "").strip()
    if text and "\n" not in text:  # some put the whole text there
        word = _identifier(text)
        if word in ALLOWED:
            return word
    classifiers = [
        _identifier(one.removeprefix(_CLASSIFIER))
        for one in metadata.get_all("Classifier") or ()
        if one.startswith(_CLASSIFIER)
    ]
    return " AND ".join(classifiers) or text.partition("\n")[0] or UNKNOWN


def _identifier(text: str) -> str:
    for form, identifier in _SPOKEN:
        if re.fullmatch(form, text, re.IGNORECASE):
            return identifier
    return text


def is_allowed(expression: str) -> bool:
    """Whether an SPDX expression can be satisfied by allowed licences alone.

    It is read without precedence, which can only refuse more: every part between "AND" must have
    an allowed choice between "OR". Exceptions ("WITH") only permit more.
    """
    flat = re.sub(r"[()]", " ", re.sub(r"\s+WITH\s+\S+", "", expression))
    parts = [re.split(r"\s+OR\s+", part.strip()) for part in re.split(r"\s+AND\s+", flat)]
    return all(any(choice.strip() in ALLOWED for choice in part) for part in parts)
