"""How long other systems need to bring many members together, one round each. Prints one JSON object.

    python bench/peers.py c10d 128          torch's own dynamic rendezvous, members as threads of 4 processes
    python bench/peers.py torchft 1000      torchft's lighthouse, clients as threads; the wheel is found or fetched by pip, without torch

The time runs from the moment when all members are ready until the last one has its answer.
"""

import datetime
import importlib.util
import json
import multiprocessing
import pathlib
import subprocess
import sys
import threading
import time

PROCESSES = 4  # threads of one interpreter wait for each other, and torch in more processes needs memory and is no faster on two cores
ROUND_TIMEOUT = 300
TORCHFT = "torchft==0.2.0"
CACHE = pathlib.Path.home() / ".cache" / "muster" / TORCHFT.replace("==", "-")


def c10d(members):
    context = multiprocessing.get_context("spawn")
    port, stop = context.Queue(), context.Event()
    host = context.Process(target=c10d_store, args=(port, stop))
    host.start()
    number = port.get()
    ready, results, begin = context.Queue(), context.Queue(), context.Event()
    share = [members // PROCESSES + (1 if i < members % PROCESSES else 0) for i in range(PROCESSES)]
    workers = [context.Process(target=c10d_members, args=(number, n, members, ready, begin, results)) for n in share]
    for worker in workers:
        worker.start()
    for _ in range(members):
        ready.get()
    began = time.monotonic()
    begin.set()
    ends = [results.get(timeout=ROUND_TIMEOUT) for _ in range(members)]
    assert sorted(rank for rank, _ in ends) == list(range(members))
    stop.set()
    for process in [*workers, host]:
        process.join()
    return max(at for _, at in ends) - began


def c10d_store(port, stop):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.put(store.port)
    stop.wait()


def c10d_members(port, threads, members, ready, begin, results):
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    def member():
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        backend = C10dRendezvousBackend(store, "round")
        handler = DynamicRendezvousHandler.from_backend("round", store, backend, members, members, "127.0.0.1")
        ready.put(1)
        begin.wait()
        found = handler.next_rendezvous()
        results.put((found.rank, time.monotonic()))

    run = [threading.Thread(target=member) for _ in range(threads)]
    for thread in run:
        thread.start()
    for thread in run:
        thread.join()


def torchft(clients):
    rust = torchft_extension()
    # All clients are there before the first one asks. The other settings are the lighthouse's own.
    server = rust.LighthouseServer(bind="127.0.0.1:0", min_replicas=clients, join_timeout_ms=60_000)
    address = server.address().replace("[::]", "127.0.0.1")
    address = "http://127.0.0.1:" + address.rsplit(":", 1)[1].strip("/")
    patience = datetime.timedelta(seconds=ROUND_TIMEOUT)
    gate, ends = threading.Barrier(clients + 1), []
    threading.stack_size(256 << 10)

    def member(number):
        client = rust.LighthouseClient(addr=address, connect_timeout=patience)
        gate.wait()
        client.quorum(replica_id=f"replica-{number}", timeout=patience)
        ends.append(time.monotonic())

    run = [threading.Thread(target=member, args=(number,)) for number in range(clients)]
    for thread in run:
        thread.start()
    gate.wait()
    began = time.monotonic()
    for thread in run:
        thread.join()
    assert len(ends) == clients
    server.shutdown()
    return max(ends) - began


def torchft_extension():
    """Only its compiled part. The rest would bring a second torch."""
    if not list(CACHE.glob("torchft/_torchft*.so")):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", str(CACHE), TORCHFT]
        subprocess.run(pip, check=True, stdout=sys.stderr)
    spec = importlib.util.spec_from_file_location("torchft._torchft", next(CACHE.glob("torchft/_torchft*.so")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kind, count = {"c10d": c10d, "torchft": torchft}[sys.argv[1]], int(sys.argv[2])
    print(json.dumps({"peer": sys.argv[1], "members": count, "seconds": round(kind(count), 3)}), flush=True)
