"""Packages of the distributions, a .deb and an .rpm, with the same programs and texts. dpkg-deb and rpmbuild make them, which are the distributions' own.

Both packages do the same when they are installed and removed: after-install, before-remove and after-remove beside this file. Neither starts a daemon
that was not running, and neither stops a worker. The same input and the same tool give the same bytes.
"""

import gzip
import os
import pathlib
import shutil
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# What the distributions call a machine.
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
COPYRIGHT = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: The Muster authors
License: Apache-2.0
 On Debian systems, the full text is in /usr/share/common-licenses/Apache-2.0. NOTICES, beside this file, has the licences of all that is
 linked into the programs.
"""
TOOLS = {"deb": ("dpkg-deb", "Debian, Ubuntu, Fedora: package dpkg"), "rpm": ("rpmbuild", "Debian, Ubuntu: package rpm; Fedora, RHEL: rpm-build")}


class Wrong(Exception):
    """The package cannot be made. The text says why, and what to do."""


def missing(kind):
    """What to install before this kind of package can be made. None: nothing."""
    tool, where = TOOLS[kind]
    return None if shutil.which(tool) else f"{tool} is not on PATH ({where})"


class Package:
    """What both have in common. `programs` and `shared` are bytes by name and by path below an installation's root."""

    def __init__(self, name, version, machine, summary, glibc, when):
        self.name, self.version, self.machine, self.summary, self.glibc, self.when = name, version, machine, summary, glibc, when

    def files(self, programs, shared, zsh):
        """Every file by its path in the system."""
        found = {f"usr/bin/{name}": content for name, content in programs.items()}
        for path, content in shared.items():
            place = pathlib.PurePath(path)
            if path.startswith("share/muster/systemd/"):
                # A site installs by hand below /usr/local, and a package never does.
                if content.count(b"=/usr/local/bin/") != 1:
                    raise Wrong(f"{place.name} does not start a program of /usr/local/bin")
                found[f"usr/lib/systemd/system/{place.name}"] = content.replace(b"=/usr/local/bin/", b"=/usr/bin/")
            elif path.startswith("share/muster/sysusers/"):
                found[f"usr/lib/sysusers.d/{place.name}"] = content
            elif path.startswith("share/man/"):
                found[f"usr/{path}.gz"] = gzip.compress(content, 9, mtime=0)
            elif path.endswith("/_muster"):
                found[f"usr/share/zsh/{zsh}/_muster"] = content
            else:
                found[f"usr/{path.replace('share/doc/muster/', f'share/doc/{self.name}/')}"] = content
        return found

    def deb(self, programs, shared):
        """The file name and the bytes."""
        machine = DEBIAN[self.machine]
        files = self.files(programs, shared, "vendor-completions")
        doc = f"usr/share/doc/{self.name}"
        # Debian has the text of this licence once for all packages.
        del files[f"{doc}/LICENSE"]
        files[f"{doc}/copyright"] = COPYRIGHT.encode()
        control = (
            f"Package: {self.name}\nVersion: {self.version}\nArchitecture: {machine}\nMaintainer: The Muster authors\n"
            f"Installed-Size: {sum(map(len, files.values())) // 1024}\nDepends: libc6 (>= {self.glibc[0]}.{self.glibc[1]})\nSection: net\nPriority: optional\n"
            f"Description: {self.summary[0]}\n" + "".join(f" {line}\n" for line in self.summary[1])
        )
        scripts = {"postinst": ('= configure', "after-install"), "prerm": ("= remove", "before-remove"), "postrm": ("= remove", "after-remove")}
        inside = {f"DEBIAN/{name}": f"#!/bin/sh\n{script(when, file)}".encode() for name, (when, file) in scripts.items()}
        with tempfile.TemporaryDirectory() as work:
            root, out = pathlib.Path(work) / "root", pathlib.Path(work) / "deb"
            self.lay(root, files | inside | {"DEBIAN/control": control.encode()})
            # gzip, because what xz makes depends on the number of processors.
            self.run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", str(root), str(out))
            return f"{self.name}_{self.version}_{machine}.deb", out.read_bytes()

    def rpm(self, programs, shared):
        """The file name and the bytes."""
        files = self.files(programs, shared, "site-functions")
        doc, licences = f"usr/share/doc/{self.name}", f"usr/share/licenses/{self.name}"
        marks = {"LICENSE": "%license", "NOTICES": "%license"}
        for name in marks:
            files[f"{licences}/{name}"] = files.pop(f"{doc}/{name}")
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            self.lay(work / "staged", files)
            listed = "\n".join(f"{marks.get(path.rpartition('/')[2], '%doc' if path.startswith(doc) else '')} /{path}".strip() for path in sorted(files))
            own = "\n".join(f"%dir /{path}" for path in (doc, licences))
            # A number: how many versions are installed afterwards.
            scripts = {"post": ("-ge 1", "after-install"), "preun": ("-eq 0", "before-remove"), "postun": ("-eq 0", "after-remove")}
            parts = "\n".join(f"%{name}\n{script(when, file)}" for name, (when, file) in scripts.items())
            spec = (HERE / "muster.spec").read_text()
            words = {"NAME": self.name, "VERSION": self.version, "SUMMARY": self.summary[0], "DESCRIPTION": "\n".join(self.summary[1])}
            for word, value in (words | {"SCRIPTS": parts, "FILES": f"{own}\n{listed}"}).items():
                spec = spec.replace(f"@{word}@", value)
            (work / "spec").write_text(spec)
            self.run("rpmbuild", "-bb", "--quiet", "--target", f"{self.machine}-linux", "--define", f"_topdir {work}/top", "--define", f"staged {work}/staged", str(work / "spec"))
            made = list((work / "top/RPMS").glob("*/*.rpm"))
            if len(made) != 1:
                raise Wrong(f"rpmbuild made {len(made)} packages")
            return made[0].name, made[0].read_bytes()

    def lay(self, root, files):
        """The files as they shall be in the system. Each bears the moment of the commit."""
        for path, content in files.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o755 if place.parent.name == "bin" or content.startswith(b"#!/bin/sh") else 0o644)
        for place in [root, *root.rglob("*")]:
            if place.is_dir():
                place.chmod(0o755)
            os.utime(place, (self.when, self.when))

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"SOURCE_DATE_EPOCH": str(self.when), "LC_ALL": "C"})
        if done.returncode != 0:
            raise Wrong(f"{' '.join(command)} failed: {done.stderr.strip()}")


def script(when, file):
    """A script of this folder that does nothing unless its first argument is as `when` says."""
    return f'set -e\n[ "$1" {when} ] || exit 0\n{(HERE / file).read_text()}'
