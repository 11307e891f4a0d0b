"""Plays kubectl for a command line that calls it, with the API server of api_server.py behind it.

It understands the very arguments that are sent, and refuses all others. A forwarded port leads to the port $COORDINATOR_PORT, and each
forward leaves a file with its pid in the folder $FORWARDS.
"""

import asyncio
import json
import os
import pathlib
import ssl
import sys
import urllib.error
import urllib.request

kubeconfig = json.loads(pathlib.Path(os.environ["KUBECONFIG"]).read_text())


def main(words):
    if words == ["config", "current-context"]:
        return print(kubeconfig["current-context"])
    context, *words = words if words[0] != "config" else [words[3], *words[:3], *words[4:]]
    contexts = {f"--context={entry['name']}": entry["context"] for entry in kubeconfig["contexts"]}
    if context not in contexts:
        raise SystemExit(f"error: {context}: no such context")
    match words:
        case ["config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}"]:
            print(contexts[context].get("namespace", ""), end="")
        case ["get", "configmap", name, "-n", space, "-o", r"jsonpath={.data.ca\.crt}", "--request-timeout=30s"]:
            print(asked(f"/api/v1/namespaces/{space}/configmaps/{name}")["data"]["ca.crt"], end="")
        case ["create", "token", name, "-n", space, audience, "--request-timeout=30s"]:
            spec = {"audiences": [audience.removeprefix("--audience=")]}
            print(asked(f"/api/v1/namespaces/{space}/serviceaccounts/{name}/token", {"spec": spec})["status"]["token"])
        case ["port-forward", "-n", "muster-system", "--address=127.0.0.1", "svc/muster-coordinator", ports]:
            asyncio.run(forward(*map(int, ports.split(":"))))
        case _:
            raise SystemExit(f"error: the test does not know {words}")


def asked(path, body=None):
    server = kubeconfig["clusters"][0]["cluster"]
    trust = ssl.create_default_context(cafile=server["certificate-authority"])
    request = urllib.request.Request(server["server"] + path, body and json.dumps(body).encode(), {"Authorization": "Bearer user"})
    try:
        return json.load(urllib.request.urlopen(request, context=trust))
    except urllib.error.HTTPError as why:
        raise SystemExit(f"Error from server: {why}") from None


async def forward(port, to):
    server = await asyncio.start_server(relay, "127.0.0.1", port)
    port = server.sockets[0].getsockname()[1]
    pathlib.Path(os.environ["FORWARDS"], str(os.getpid())).write_text(str(port))
    print(f"Forwarding from 127.0.0.1:{port} -> {to}", flush=True)
    await server.serve_forever()


async def relay(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(os.environ["COORDINATOR_PORT"]))
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)


async def pump(reader, writer):
    while some := await reader.read(65536):
        writer.write(some)
        await writer.drain()
    writer.close()


main(sys.argv[1:])
