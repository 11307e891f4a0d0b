"""What it costs a rank to be asked when it came to its collectives (docs/slow-ranks.md): two ranks over gloo that make a step of 50 ms, with a
recorder that is full. Rank 0 is asked for all its calls once a second in every other part of its time.

    $(tools/python-env) bench/looks.py
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

STEPS, PARTS = 300, 6


def ask(path):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(path)
        stream.sendall(b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        size = 0
        while part := stream.recv(1 << 20):
            size += len(part)
    return size


def rank(number, folder):
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _WorkerServer

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=number, world_size=2)
    server, data = _WorkerServer(f"{folder}/server-{number}.sock"), torch.ones(64)
    for _ in range(2_000):
        dist.all_reduce(data)
    for part in range(PARTS):
        times, before = [], time.process_time()
        open(f"{folder}/part-{part}-{number}", "w").close()
        for _ in range(STEPS):
            begun = time.perf_counter()
            time.sleep(0.05)
            dist.all_reduce(data)
            times.append(time.perf_counter() - begun)
        if number == 0:
            with open(f"{folder}/times-{part}", "w") as file:
                file.write(f"{statistics.mean(times)} {statistics.median(times)} {time.process_time() - before}")
            os.rename(f"{folder}/times-{part}", f"{folder}/done-{part}")
    dist.barrier()
    server.shutdown()


def main():
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, str(number), folder], stderr=subprocess.DEVNULL) for number in range(2)]
        found, size = {False: [], True: []}, 0
        for part in range(PARTS):
            asks, count = part % 2 == 1, 0
            while not os.path.exists(f"{folder}/part-{part}-0"):
                time.sleep(0.01)
            while not os.path.exists(f"{folder}/done-{part}"):
                if asks:
                    size, count = ask(f"{folder}/server-0.sock"), count + 1
                time.sleep(1)
            mean, median, cpu = map(float, open(f"{folder}/done-{part}").read().split())
            found[asks].append((mean, median, cpu, count))
        for process in ranks:
            process.wait()
    plain, asked = ([statistics.mean(column) for column in zip(*found[asks])] for asks in (False, True))
    each = (asked[2] - plain[2]) / asked[3]
    print(f"a step: mean {plain[0] * 1e3:.2f} ms, median {plain[1] * 1e3:.2f}; asked once a second: {asked[0] * 1e3:.2f}, {asked[1] * 1e3:.2f}")
    print(f"an answer: {size / 1e6:.2f} MB, {each * 1e3:.0f} ms of a processor in the rank; once in ten seconds: {each * 10:.2f} % of one processor")
    print(f"longer steps, once in ten seconds: {(asked[0] / plain[0] - 1) * 10:.3f} %")


if len(sys.argv) > 1:
    rank(int(sys.argv[1]), sys.argv[2])
else:
    main()
