"""Licences of everything that is linked into the programs: what their terms ask to be passed on with a binary.

    tools/packaging/notices.py x86_64-unknown-linux-gnu
"""

import json
import pathlib
import subprocess
import sys

SHIPPED = ("muster-cli", "muster-agent", "muster-coordinator", "muster-runner")
# What authors call the file. A crate may have several, as one for each licence that it offers.
FILES = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "UNLICENSE*", "COPYRIGHT*", "license*")


class Wrong(Exception):
    """The notices cannot be made."""


def text(root, target):
    """All notices, in the order of the crates' names. A text that several crates have stands once."""
    crates = sorted(linked(root, target), key=lambda crate: (crate["name"], crate["version"]))
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


def linked(root, target):
    """The crates of other authors that the shipped programs are linked with: not what only builds or tests need."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        raise Wrong(f"{' '.join(command)} failed: {done.stderr.strip()}")
    known = json.loads(done.stdout)
    crates = {crate["id"]: crate for crate in known["packages"]}
    needs = {node["id"]: [need["pkg"] for need in node["deps"] if any(kind["kind"] is None for kind in need["dep_kinds"])] for node in known["resolve"]["nodes"]}
    found, ahead = set(), [key for key, crate in crates.items() if crate["name"] in SHIPPED]
    while ahead:
        key = ahead.pop()
        if key not in found:
            found.add(key)
            ahead += needs[key]
    return [crates[key] for key in found if crates[key]["source"]]


def licence_files(crate):
    folder = pathlib.Path(crate["manifest_path"]).parent
    found = {file for pattern in FILES for file in folder.glob(pattern) if file.is_file()}
    if crate["license_file"]:
        found.add(folder / crate["license_file"])
    return sorted(found)


if __name__ == "__main__":
    try:
        print(text(pathlib.Path(__file__).resolve().parents[2], sys.argv[1]), end="")
    except Wrong as error:
        sys.exit(f"notices: {error}")
