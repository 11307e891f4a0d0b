"""An etcd for torch's etcd-v2 rendezvous, if one can be had: the server on PATH or from Debian's package, the client from PyPI.

Torch ships no client, and it speaks etcd's old protocol: servers from 3.4 need --enable-v2, and 3.6 has removed it. Nothing is installed
into the system. Downloads are kept in the cache directory.
"""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

CACHE = pathlib.Path.home() / ".cache" / "muster" / "etcd"
START_TIMEOUT = 20


class Missing(Exception):
    """Why there is no etcd here."""


def client():
    """The folder with torch's client library."""
    if not (CACHE / "python" / "etcd").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(CACHE / "python"), "python-etcd", "urllib3<3"]
        run(pip, "python-etcd cannot be installed")
    return CACHE / "python"


def server():
    found = shutil.which("etcd") or CACHE / "usr" / "bin" / "etcd"
    if not pathlib.Path(found).exists():
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            raise Missing("no etcd on PATH, and no apt-get to fetch one")
        CACHE.mkdir(parents=True, exist_ok=True)
        run(["apt-get", "download", "etcd-server"], "Debian's etcd-server cannot be fetched", cwd=CACHE)
        for package in CACHE.glob("etcd-server*.deb"):
            run(["dpkg", "-x", str(package), str(CACHE)], "its package cannot be unpacked")
    return found


def run(command, problem, **how):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise Missing(f"{problem}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")


class Etcd:
    """One server for the whole race. Each start has a prefix of its own in it."""

    def __init__(self, folder):
        program, self.client = server(), client()
        ports = []
        for _ in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.append(probe.getsockname()[1])
        self.port = ports[0]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        flags = ["--data-dir", str(folder), "--enable-v2", "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        flags += ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", f"default={urls[1]}"]
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}  # Debian's build needs this beyond x86-64
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([program, *flags], env=environment, start_new_session=True, **quiet)
        until = time.monotonic() + START_TIMEOUT
        while not self.answers():
            if time.monotonic() > until or self.process.poll() is not None:
                self.close()
                raise Missing("etcd does not serve its second protocol")
            time.sleep(0.05)

    def answers(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/keys", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False

    def close(self):
        self.process.kill()
        self.process.wait()
