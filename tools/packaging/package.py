"""Packs programs into a wheel, a tarball, a .deb and an .rpm (system.py). The same input gives the same bytes.

    tools/packaging/package.py --programs FOLDER --target x86_64-unknown-linux-gnu --out FOLDER

The wheel holds programs and no Python code, so it fits every Python, and disturbs no package of the environment that it is installed into.
"""

import argparse
import base64
import gzip
import hashlib
import io
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile

import crates
import notices
import sbom
import system

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "muster-train"
PROGRAMS = ("muster", "muster-agent", "muster-coordinator", "muster-runner")
# Level 9 takes four times as long for 1 % less.
LEVEL = 6
# The oldest glibc that pip has a name for (PEP 600).
OLDEST_NAMED = (2, 17)
SUMMARY = "Elastic, fault-tolerant distributed training for GPU clusters"
DESCRIPTION = (
    "torchrun jobs go on when workers, nodes or daemons die.",
    "An agent on every node starts and watches its torchrun workers, a coordinator",
    "decides who trains with whom, and `muster` is the command line. This package",
    "holds all of them. It starts no daemon: `muster-coordinator init` and",
    "`muster-agent join` say how.",
)
SBOM = "share/doc/muster/sbom.cdx.json"
FORMATS = ("wheel", "tarball", "deb", "rpm")
COMPLETIONS = {
    "bash": "share/bash-completion/completions/muster",
    "zsh": "share/zsh/site-functions/_muster",
    "fish": "share/fish/vendor_completions.d/muster.fish",
}


class Wrong(Exception):
    """The packages cannot be made. The text says why, and what to do."""


def main():
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--programs", type=pathlib.Path, required=True, help="folder with the four programs")
    options.add_argument("--target", required=True, help="the Rust target that they were built for")
    options.add_argument("--speaker", type=pathlib.Path, help="a muster of the same commit that runs here [default: the packed one]")
    options.add_argument("--formats", type=formats, help=f"some of {','.join(FORMATS)} [default: those whose tools are here]")
    options.add_argument("--out", type=pathlib.Path, required=True, help="folder for the packages")
    asked = options.parse_args()
    try:
        packages = pack(asked.programs, asked.speaker or asked.programs / "muster", asked.target, asked.formats or available(), moment())
    except (Wrong, crates.Wrong, system.Wrong) as error:
        sys.exit(f"package: {error}")
    asked.out.mkdir(parents=True, exist_ok=True)
    sums = ""
    for name, content in packages.items():
        (asked.out / name).write_bytes(content)
        sums += f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        print(f"{len(content) / 1e6:8.1f} MB  {asked.out / name}")
    (asked.out / "SHA256SUMS").write_text(sums)


def formats(text):
    unknown = [word for word in text.split(",") if word not in FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(FORMATS)}")
    return text.split(",")


def available():
    """The formats that can be made here. It says what the others need."""
    lacks = {kind: why for kind in system.TOOLS if (why := system.missing(kind))}
    for kind, why in lacks.items():
        print(f"no {kind}: {why}", file=sys.stderr)
    return [kind for kind in FORMATS if kind not in lacks]


def moment():
    """Seconds since 1970 that every file of a package bears. A zip file cannot bear a time before 1980."""
    try:
        return max(int(os.environ["SOURCE_DATE_EPOCH"]), 315619200)
    except (KeyError, ValueError):
        raise Wrong("SOURCE_DATE_EPOCH must be set to a number of seconds: the moment that every file of the packages bears") from None


def pack(folder, speaker, target, kinds, when):
    """The packages by file name. `speaker`: a `muster` of the same commit that runs on this machine."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    machine = target.partition("-")[0]
    programs = {name: (folder / name).read_bytes() for name in PROGRAMS}
    glibc = max((least_glibc(folder / name, machine) for name in PROGRAMS), default=OLDEST_NAMED)
    shared = texts(speaker, target, version, when)
    of_system = system.Package(NAME, version, machine, (SUMMARY, DESCRIPTION), glibc, when)
    made = []
    for kind in kinds:
        if kind in system.TOOLS and (why := system.missing(kind)):
            raise Wrong(f"no {kind}: {why}")
        if kind == "wheel":
            wheel = f"{NAME.replace('-', '_')}-{version}-py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"
            made.append((f"{wheel}.whl", wheel_of(version, wheel.split("-", 2)[2], programs, shared, when)))
        elif kind == "tarball":
            made.append((f"muster-{version}-linux-{machine}.tar.gz", tarball_of(f"muster-{version}", programs, shared, when)))
        elif kind == "deb":
            made.append(of_system.deb(programs, shared))
        else:
            made.append(of_system.rpm(programs, shared))
    return dict(made)


def least_glibc(program, machine):
    """The oldest glibc with which a program runs, as (2, 17). A static program needs none."""
    read = run("readelf", "--wide", "--file-header", "--dynamic", "--version-info", str(program))
    if not re.search(rf"Machine:.*{'X86-64' if machine == 'x86_64' else 'AArch64'}", read):
        raise Wrong(f"{program} is not a program for {machine}")
    return max([OLDEST_NAMED, *((int(a), int(b)) for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", read))])


def texts(speaker, target, version, when):
    """What belongs to the programs and is text, by its path below the installation's root."""
    linked = crates.linked(ROOT, target)
    found = {
        "share/doc/muster/LICENSE": (ROOT / "LICENSE").read_bytes(),
        "share/doc/muster/CHANGELOG.md": (ROOT / "CHANGELOG.md").read_bytes(),
        "share/doc/muster/NOTICES": notices.text(linked).encode(),
        SBOM: sbom.text(ROOT, linked, NAME, version, when).encode(),
    }
    for shell, path in COMPLETIONS.items():
        found[path] = run(str(speaker), "completion", shell).encode()
    with tempfile.TemporaryDirectory() as pages:
        run(str(speaker), "man", pages)
        for page in sorted(pathlib.Path(pages).iterdir()):
            found[f"share/man/man1/{page.name}"] = page.read_bytes()
    for kind in ("systemd", "sysusers"):
        for file in sorted((ROOT / "manifests" / kind).iterdir()):
            found[f"share/muster/{kind}/{file.name}"] = file.read_bytes()
    return found


def run(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise Wrong(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        raise Wrong(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout


def wheel_of(version, tag, programs, shared, when):
    """A wheel (packaging.python.org, "Binary distribution format"). pip puts `scripts` beside the environment's python, and makes them executable."""
    base = f"{NAME.replace('-', '_')}-{version}"
    info = f"{base}.dist-info"
    metadata = (
        f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {version}\nSummary: {SUMMARY}\nLicense-Expression: Apache-2.0\n"
        f"License-File: LICENSE\nLicense-File: NOTICES\nRequires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n"
    ).encode() + (ROOT / "README.md").read_bytes()
    files = {f"{base}.data/scripts/{name}": content for name, content in programs.items()}
    files |= {f"{base}.data/data/{path}": content for path, content in shared.items()}
    files[f"{info}/METADATA"] = metadata
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: muster tools/dist\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    for name in ("LICENSE", "NOTICES"):
        files[f"{info}/licenses/{name}"] = shared[f"share/doc/muster/{name}"]
    # Where PEP 770 wants it.
    files[f"{info}/sboms/muster.cdx.json"] = shared[SBOM]
    record = "".join(f"{path},sha256={digest(content)},{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, time.gmtime(when)[:6])
            entry.create_system = 3  # Unix, whose modes follow
            entry.external_attr = (stat.S_IFREG | mode_of(path)) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, LEVEL)
    return packed.getvalue()


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def mode_of(path):
    return 0o755 if pathlib.PurePath(path).parent.name in ("scripts", "bin") else 0o644


def tarball_of(root, programs, shared, when):
    """A tarball with one folder, whose content belongs below /usr/local or any other prefix."""
    files = {f"{root}/bin/{name}": content for name, content in programs.items()}
    files |= {f"{root}/{path}": content for path, content in shared.items()}
    files[f"{root}/README.md"] = (ROOT / "README.md").read_bytes()
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", LEVEL, packed, mtime=when) as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(content), when, mode_of(path)
            entry.uname = entry.gname = "root"
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


if __name__ == "__main__":
    main()
