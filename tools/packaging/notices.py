"""Licences of everything that is linked into the programs: what their terms ask to be passed on with a binary."""

import pathlib

# What authors call the file. A crate may have several, as one for each licence that it offers.
FILES = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "UNLICENSE*", "COPYRIGHT*", "license*")


def text(crates):
    """All notices, in the order of the crates. A text that several crates have stands once."""
    parts, texts = ["Software that is linked into Muster's programs, and its licences.\n"], {}
    for crate in crates:
        numbers = []
        for file in licence_files(crate):
            content = "\n".join(line.rstrip() for line in file.read_text(errors="replace").strip().splitlines())
            numbers.append(texts.setdefault(content, len(texts) + 1))
        where = f", text {', '.join(map(str, numbers))}" if numbers else f"; {crate['repository'] or 'its package'} has the text"
        parts.append(f"{crate['name']} {crate['version']}: {crate['license'] or 'see its licence file'}{where}")
    parts += [f"\n{'=' * 100}\nText {number}\n\n{content}" for content, number in texts.items()]
    return "\n".join(parts) + "\n"


def licence_files(crate):
    folder = pathlib.Path(crate["manifest_path"]).parent
    found = {file for pattern in FILES for file in folder.glob(pattern) if file.is_file()}
    if crate["license_file"]:
        found.add(folder / crate["license_file"])
    return sorted(found)
