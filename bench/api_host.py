"""A real Kubernetes API server with its etcd, and what one of its users asks of it: how many requests, and how many bytes.

Requests are counted from the API server's audit log, bytes by a relay through which that user calls. Whoever fills the cluster calls directly.
"""

import collections
import http.client
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time

POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [coordinator]}
- {level: None}
"""
PATIENCE = 120


class Host:
    """All of it is in one folder, and ends with the `with` block."""

    def __init__(self, folder, programs):
        self.folder, self.processes, self.read = pathlib.Path(folder), [], 0
        find = lambda name: shutil.which(name, path=str(programs)) or shutil.which(name)  # noqa: E731
        self.programs = {name: find(name) for name in ("etcd", "kube-apiserver")}
        missing = [name for name, path in self.programs.items() if not path]
        if missing:
            raise SystemExit(f"{' and '.join(missing)} must be in $KUBEBUILDER_ASSETS, in --programs or on PATH")

    def __enter__(self):
        store, peers, self.port = free_port(), free_port(), free_port()
        (self.folder / "policy.yaml").write_text(POLICY)
        (self.folder / "users.csv").write_text("admin,admin,admin,system:masters\ncoordinator,coordinator,coordinator\n")
        subprocess.run(["openssl", "genrsa", "-out", self.folder / "sa.key", "2048"], check=True, capture_output=True)
        clients = f"http://127.0.0.1:{store}"
        self.start(
            *("etcd", f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}"),
            *(f"--listen-peer-urls=http://127.0.0.1:{peers}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peers}"),
            *(f"--initial-cluster=default=http://127.0.0.1:{peers}", "--unsafe-no-fsync", "--quota-backend-bytes=4294967296"),
        )
        self.start(
            *("kube-apiserver", f"--etcd-servers={clients}", f"--secure-port={self.port}", "--bind-address=127.0.0.1"),
            *(f"--cert-dir={self.folder / 'certificates'}", f"--service-account-key-file={self.folder / 'sa.key'}"),
            *(f"--service-account-signing-key-file={self.folder / 'sa.key'}", "--service-account-issuer=https://muster.bench"),
            *("--service-cluster-ip-range=10.0.0.0/24", f"--token-auth-file={self.folder / 'users.csv'}", "--authorization-mode=AlwaysAllow"),
            *(f"--audit-policy-file={self.folder / 'policy.yaml'}", f"--audit-log-path={self.folder / 'audit.log'}"),
        )
        until(lambda: self.answers("/readyz"), "the API server is ready")
        self.relay = Relay(self.port)
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def start(self, name, *flags):
        log = (self.folder / f"{name}.log").open("w")
        self.processes.append(subprocess.Popen([self.programs[name], *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def answers(self, path):
        try:
            return Client(self.port).ask("GET", path, raw=True) is not None
        except (OSError, http.client.HTTPException, Refused):
            return False

    def kubeconfig(self):
        """That of the user whose requests are counted."""
        cluster = {"server": f"https://127.0.0.1:{self.relay.port}", "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": "coordinator"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "muster-system"}}],
        }
        path = self.folder / "kubeconfig.json"
        path.write_text(json.dumps(content))
        return path

    def requests(self):
        """Those that were begun since the last call, by verb and resource."""
        found = collections.Counter()
        with (self.folder / "audit.log").open() as log:
            log.seek(self.read)
            while (line := log.readline()).endswith("\n"):
                self.read = log.tell()
                entry = json.loads(line)
                # A watch has an entry when it begins and one when it ends.
                if (entry["verb"] == "watch") == (entry["stage"] == "ResponseStarted"):
                    found[f"{entry['verb']} {resource(entry.get('objectRef', {}))}"] += 1
        return found


def resource(reference):
    return "/".join(filter(None, (reference.get("resource", "?"), reference.get("subresource"))))


class Refused(Exception):
    pass


class Client:
    """One connection of the administrator."""

    def __init__(self, port):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)

    def ask(self, method, path, body=None, raw=False):
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": "Bearer admin", "Content-Type": content}
        self.connection.request(method, path, body and json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise Refused(f"{method} {path}: {answer.status} {text[:300]}")
        return text if raw else json.loads(text)


    def define(self, text):
        """Makes a CustomResourceDefinition of its YAML, and waits until its objects are served."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        name = re.search(r"^  name: (\S+)$", text, re.MULTILINE)[1]
        headers = {"Authorization": "Bearer admin", "Content-Type": "application/yaml"}
        self.connection.request("POST", path, text, headers)
        answer = self.connection.getresponse()
        said = answer.read()
        if answer.status >= 400:
            raise Refused(f"{name}: {answer.status} {said[:300]}")
        until(lambda: self.is_established(f"{path}/{name}"), f"{name} is served")

    def is_established(self, path):
        conditions = self.ask("GET", path).get("status", {}).get("conditions") or []
        return any(entry["type"] == "Established" and entry["status"] == "True" for entry in conditions)


class Relay:
    """A port that leads to the API server, and counts the bytes of both ways, as they are on the wire (TLS)."""

    def __init__(self, to):
        self.to, self.bytes, self.lock = to, {"up": 0, "down": 0}, threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.server.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            for way in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self.pump, args=way, daemon=True).start()

    def pump(self, source, sink, way):
        try:
            while some := source.recv(1 << 18):
                sink.sendall(some)
                with self.lock:
                    self.bytes[way] += len(some)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(so, what, patience=PATIENCE):
    deadline = time.monotonic() + patience
    while not so():
        if time.monotonic() > deadline:
            raise SystemExit(f"not so within {patience} s: {what}")
        time.sleep(0.05)
