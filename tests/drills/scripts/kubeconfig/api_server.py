"""So much of a Kubernetes API server as users with a kubeconfig and a coordinator ask for, with TLS on loopback.

    api_server.py CERTIFICATE KEY

Prints its port. A user shows the bearer token `user`, the coordinator shows nothing. The service account team-a/muster exists. It may do all to
jobs of its namespace.
"""

import base64
import http.server
import json
import re
import ssl
import sys
import time

AUDIENCE = "muster-coordinator.muster-system"
ACCOUNT = "system:serviceaccount:team-a:muster"
RESOURCES = [
    {"name": "configmaps", "singularName": "configmap", "namespaced": True, "kind": "ConfigMap", "verbs": ["get"]},
    {"name": "serviceaccounts", "singularName": "serviceaccount", "namespaced": True, "kind": "ServiceAccount", "verbs": ["get"]},
]
config_maps, tokens = {}, {}


def part(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def minted(audience):
    claims = {"aud": [audience], "sub": ACCOUNT, "exp": int(time.time()) + 3600, "jti": len(tokens)}
    token = f"{part({'alg': 'none'})}.{part(claims)}.c2ln"
    tokens[token] = audience
    return token


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, value):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, code, reason):
        self.answer(code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": f"the test says {reason}"})

    def body(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "protobuf" not in self.headers.get("Content-Type", ""):
            return json.loads(body or b"null")
        # kubectl asks for a token in this form. Of the request only the audience counts.
        return {"spec": {"audiences": re.findall(r"muster-coordinator\.[a-z-]+", body.decode("latin-1"))}}

    def is_user(self):
        if self.headers.get("Authorization") == "Bearer user":
            return True
        self.refuse(401, "Unauthorized")
        return False

    def do_GET(self):
        path = self.path.partition("?")[0]
        known = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES},
        }
        if path in known:
            return self.answer(200, known[path])
        found = re.fullmatch(r"/api/v1/namespaces/([^/]+)/configmaps/([^/]+)", path)
        if found and found.groups() in config_maps:
            return self.is_user() and self.answer(200, config_maps[found.groups()])
        self.refuse(404, "NotFound")

    def do_PATCH(self):
        found = re.fullmatch(r"/api/v1/namespaces/([^/]+)/configmaps/([^/?]+).*", self.path)
        config_maps[found.groups()] = value = self.body()
        self.answer(200, value)

    def do_POST(self):
        path, asked = self.path.partition("?")[0], self.body()
        if path == "/api/v1/namespaces/team-a/serviceaccounts/muster/token":
            if self.is_user():
                status = {"token": minted(asked["spec"]["audiences"][0]), "expirationTimestamp": "2100-01-01T00:00:00Z"}
                self.answer(201, asked | {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": status})
        elif path.endswith("/tokenreviews"):
            audience = tokens.get(asked["spec"]["token"])
            is_good = audience in asked["spec"]["audiences"]
            user = {"username": ACCOUNT, "groups": ["system:serviceaccounts", "system:authenticated"]}
            status = {"authenticated": True, "audiences": [audience], "user": user} if is_good else {"authenticated": False}
            self.answer(201, asked | {"status": status})
        elif path.endswith("/subjectaccessreviews"):
            what = asked["spec"]["resourceAttributes"]
            is_mine = asked["spec"]["user"] == ACCOUNT and what["resource"] == "musterjobs" and what.get("namespace") == "team-a"
            self.answer(201, asked | {"status": {"allowed": is_mine}})
        else:
            self.refuse(404, "NotFound")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
