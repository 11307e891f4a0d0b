"""A client of Muster's gRPC API: it submits a job, follows it to its end, and prints its logs and its incidents.

docs/api.md says how to make the stubs (the modules muster.v1...) and how to run it. Without --context it calls the cluster of
`muster local up`; with --context NAME the cluster of that `muster login`.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import uuid

import grpc
from muster.v1 import access_pb2, access_pb2_grpc, jobs_pb2, jobs_pb2_grpc

OVER = (jobs_pb2.JOB_PHASE_SUCCEEDED, jobs_pb2.JOB_PHASE_FAILED, jobs_pb2.JOB_PHASE_CANCELLED)
# No proxy stands between a client and its coordinator. A connection that is cut without a word is noticed by pings.
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.keepalive_time_ms", 20_000)]


def main():
    args = arguments()
    with connect(args.context) as channel:
        jobs = jobs_pb2_grpc.JobServiceStub(channel)
        who = access_pb2_grpc.AccessServiceStub(channel).WhoAmI(access_pb2.WhoAmIRequest(), timeout=10)
        print(f"connected as {who.identity}, role {who.role}")

        ref = jobs_pb2.JobRef(namespace=args.namespace, name=args.name)
        spec = jobs_pb2.JobSpec(replicas=1, command=[args.python], args=args.script, working_dir=os.getcwd())
        # With a request id the same request may be sent again, and there is still one job.
        request = jobs_pb2.SubmitRequest(ref=ref, spec=spec, request_id=str(uuid.uuid4()))
        job = jobs.Submit(request, timeout=10).job
        print(f"submitted {job.ref.namespace}/{job.ref.name}, uid {job.uid}")

        for job in follow(jobs, ref):
            print(f"{phase(job)}: {job.status.message}")
        # All generations from the first one on. The job is over, so this ends. Several logs are read at once.
        parts = jobs.Logs(jobs_pb2.LogsRequest(ref=ref, follow=True, since_generation=1), timeout=60)
        for part in sorted(parts, key=lambda part: part.generation):
            for line in part.lines:  # "TIME STREAM F TEXT", the CRI log format
                print(f"generation {part.generation} rank {part.rank} | {line.split(' ', 3)[3]}")
            if part.notice:
                print(f"notice: {part.notice}")
        for incident in jobs.Explain(jobs_pb2.ExplainRequest(ref=ref), timeout=10).incidents:
            print(f"incident {incident.cause}: {incident.message}; charged to {incident.charged}", end="")
            print(f"; {incident.total_us / 1e6:.3f} s in all" if incident.HasField("total_us") else "")
    return 0 if job.status.phase == jobs_pb2.JOB_PHASE_SUCCEEDED else 1


def follow(jobs, ref):
    """The job whenever its phase has changed, until it is over. A coordinator that restarts in between is waited for."""
    last = None
    while True:
        watch = jobs.Watch(jobs_pb2.WatchJobsRequest(namespace=ref.namespace, name=ref.name), wait_for_ready=True)
        try:
            for change in watch:
                if change.deleted:
                    raise SystemExit("the job was deleted")
                if change.job.status.phase != last:
                    yield change.job
                last = change.job.status.phase
                if last in OVER:
                    watch.cancel()
                    return
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(0.5)


def phase(job):
    """`Running` for JOB_PHASE_RUNNING."""
    return jobs_pb2.JobPhase.Name(job.status.phase).removeprefix("JOB_PHASE_").capitalize()


def connect(context):
    """A channel to the coordinator. With TLS, one file has the authorities to trust, the certificate and its key."""
    server, file = of_context(context) if context else of_local_cluster()
    if file is None:
        return grpc.insecure_channel(server.removeprefix("http://"), OPTIONS)
    own = json.loads(file.read_text())
    credentials = grpc.ssl_channel_credentials(own["authorities"].encode(), own["key"].encode(), own["certificate"].encode())
    return grpc.secure_channel(server.removeprefix("https://"), credentials, OPTIONS)


def of_context(name):
    """What `muster login` has written. Commands of `muster` renew the certificate; this client does not."""
    config = os.environ.get("MUSTER_CONFIG") or folder("XDG_CONFIG_HOME", ".config") / "muster" / "config.yaml"
    file = pathlib.Path(config).parent / "credentials" / f"{name}.json"
    return json.loads(file.read_text())["server"], file


def of_local_cluster():
    """What `muster local up` has written."""
    directory = pathlib.Path(os.environ.get("MUSTER_LOCAL_DIR") or folder("XDG_STATE_HOME", ".local/state") / "muster" / "local")
    server = json.loads((directory / "cluster.json").read_text())["server"]
    return server, directory / "credentials.json" if server.startswith("https://") else None


def folder(variable, below_home):
    return pathlib.Path(os.environ.get(variable) or pathlib.Path.home() / below_home)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--context", metavar="NAME", help="a context of `muster login`")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("--name", required=True, help="the job's name")
    parser.add_argument("--python", default="python3", help="the interpreter on the nodes; it must have torch")
    parser.add_argument("script", nargs="+", help="the script and its arguments")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
