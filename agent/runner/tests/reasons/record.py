"""Runs scripts that fail in many ways and prints what each left on stderr: the text of `recorded.txt`.

    python record.py [NAME...] > recorded.txt

A way is a name, the reason that a person would give, and a script: Python, or shell if it begins with `#!`. It runs as `/job/train.py`, as far as
the recording shows. Some ways need click, typer, hydra-core, tqdm, pyarrow, rich, absl-py, loguru or wandb, and some a C++ compiler. A reason
`-` means that nothing says why. A reason that begins with `last output: ` is only what was printed last.
"""

import os
import re
import socket
import subprocess
import sys
import sysconfig
import tempfile

MODEL = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 2))
"""

CXX = """
import ctypes, os, subprocess
source = r'''
#include <stdexcept>
#include <thread>
namespace c10 { struct DistBackendError : std::runtime_error { using runtime_error::runtime_error; }; struct Odd { int code; }; }
extern "C" void raise_it(const char *text) { throw c10::DistBackendError(text); }
extern "C" void raise_odd() { throw c10::Odd{7}; }
extern "C" void leave_thread() { std::thread t([] { for (;;) std::this_thread::yield(); }); }
'''
subprocess.run(["g++", "-shared", "-fPIC", "-xc++", "-", "-olib.so", "-pthread"], input=source, text=True, check=True)
lib = ctypes.CDLL("./lib.so")
"""

WAYS = [
    ("zip", "zipfile.BadZipFile: File is not a zip file", """
import zipfile
open("data.npz", "w").write("no zip")
zipfile.ZipFile("data.npz")
"""),
    ("process pool", "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly while the future was running or pending.", """
import concurrent.futures, os
with concurrent.futures.ProcessPoolExecutor(1) as pool:
    pool.submit(os._exit, 3).result()
"""),
    ("arrow", "pyarrow.lib.ArrowInvalid: Could not open Parquet input source 'shard.parquet': Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.", """
import pyarrow.parquet as pq
open("shard.parquet", "w").write("never parquet")
pq.read_table("shard.parquet")
"""),
    ("queue", "_queue.Empty", """
import queue
queue.Queue().get(timeout=0.01)
"""),
    ("stop iteration", "StopIteration", """
batches = iter([])
def train():
    return next(batches)
train()
"""),
    ("group", "ExceptionGroup: 2 shards failed (2 sub-exceptions): ValueError: shard 3 is torn; KeyError: 'label'", """
def load():
    raise ValueError("shard 3 is torn")
def all_of():
    wrong = []
    try:
        load()
    except ValueError as error:
        wrong.append(error)
    try:
        {}["label"]
    except KeyError as error:
        wrong.append(error)
    raise ExceptionGroup("2 shards failed", wrong)
all_of()
"""),
    ("nested group", "ExceptionGroup: outer (2 sub-exceptions): ValueError: one; TypeError: two", """
raise ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("one")]), TypeError("two")])
"""),
    ("task group", "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): OSError: no route", """
import asyncio
async def fetch():
    raise OSError("no route")
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fetch())
asyncio.run(main())
"""),
    ("no text", "AssertionError", """
def check(n):
    assert n > 3
check(2)
"""),
    ("own name", "Diverged: loss is nan at step 40", """
class Diverged(Exception):
    pass
raise Diverged("loss is nan at step 40")
"""),
    ("local name", "setup.<locals>.NoShard: 7", """
def setup():
    class NoShard(LookupError):
        pass
    raise NoShard(7)
setup()
"""),
    ("name in another alphabet", "Сбой: данных нет", """
class Сбой(Exception):
    pass
raise Сбой("данных нет")
"""),
    ("broken text", "Odd: <exception str() failed>", """
class Odd(Exception):
    def __str__(self):
        raise ValueError
raise Odd(1)
"""),
    ("cause", "RuntimeError: no config", """
try:
    {}["lr"]
except KeyError as error:
    raise RuntimeError("no config") from error
"""),
    ("context", "TypeError: second", """
try:
    {}["first"]
except KeyError:
    raise TypeError("second")
"""),
    ("chain of three", "LookupError: three", """
def one():
    raise ValueError("one")
def two():
    try:
        one()
    except ValueError as error:
        raise TypeError("two") from error
try:
    two()
except TypeError:
    raise LookupError("three")
"""),
    ("notes", "ValueError: bad row", """
error = ValueError("bad row")
error.add_note("in shard 12")
error.add_note("of epoch 3")
raise error
"""),
    ("syntax", "SyntaxError: invalid syntax", """
def train(:
    pass
"""),
    ("indentation", "IndentationError: expected an indented block after 'for' statement on line 1", """
for step in range(3):
print(step)
"""),
    ("syntax of a module", "SyntaxError: '(' was never closed", """
open("model.py", "w").write("net = build(\\n")
import model
"""),
    ("module", "ModuleNotFoundError: No module named 'flash_attn_of_nobody'", """
import flash_attn_of_nobody
"""),
    ("recursion", "RecursionError: maximum recursion depth exceeded", """
def deep():
    deep()
deep()
"""),
    ("state dict", "RuntimeError: Error(s) in loading state_dict for Sequential: Missing key(s) in state_dict: \"0.weight\", \"0.bias\". Unexpected key(s) in state_dict: \"fc.weight\".", MODEL + """
net.load_state_dict({"fc.weight": torch.zeros(1)})
"""),
    ("long state dict", "RuntimeError: Error(s) in loading state_dict for Sequential: size mismatch for 0.weight: copying a param with shape torch.Size([3, 4]) from checkpoint, the shape in current model is torch.Size([2, 4]). size mismatch for 0.bias:…", """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(4, 2) for _ in range(20)])
old = torch.nn.Sequential(*[torch.nn.Linear(4, 3) for _ in range(20)])
net.load_state_dict(old.state_dict())
"""),
    ("text of several lines", "ValueError: the config is wrong: lr must be positive", """
raise ValueError("the config is wrong:\\nlr must be positive\\n\\nseed must be a number\\nsee the manual")
"""),
    ("loader", "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: bad sample 3", """
import torch.utils.data
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, n):
        if n == 3:
            raise ValueError(f"bad sample {n}")
        return n
for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
    pass
"""),
    ("loader killed", "RuntimeError: DataLoader worker (pid(s) 1234) exited unexpectedly", """
import os, signal, torch.utils.data
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, n):
        os.kill(os.getpid(), signal.SIGKILL)
for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
    pass
"""),
    ("spawned", "torch.multiprocessing.spawn.ProcessRaisedException: -- Process 0 terminated with the following error: ValueError: in the child", """
import torch.multiprocessing as mp
def work(rank):
    raise ValueError("in the child")
if __name__ == "__main__":
    mp.start_processes(work, nprocs=1, start_method="fork")
"""),
    ("pool of processes", "ValueError: 3 is odd", """
import concurrent.futures
def work(n):
    raise ValueError(f"{n} is odd")
with concurrent.futures.ProcessPoolExecutor(1) as pool:
    pool.submit(work, 3).result()
"""),
    ("child's error only", "ValueError: in the child", """
import multiprocessing, sys
def work():
    raise ValueError("in the child")
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
sys.exit(child.exitcode)
"""),
    ("child's error first", "RuntimeError: a child has failed", """
import multiprocessing
def work():
    raise ValueError("in the child")
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
raise RuntimeError("a child has failed")
"""),
    ("thread's error first", "_queue.Empty", """
import queue, threading
def read():
    raise OSError("the reader's own")
reader = threading.Thread(target=read)
reader.start()
reader.join()
queue.Queue().get_nowait()
"""),
    ("thread's error at exit", "zipfile.BadZipFile: File is not a zip file", """
import io, threading, zipfile
def late():
    threading.main_thread().join()
    raise OSError("too late")
threading.Thread(target=late).start()
zipfile.ZipFile(io.BytesIO(b"x"))
"""),
    ("error at exit", "RuntimeError: the first", """
import atexit
def upload():
    raise OSError("no uplink")
atexit.register(upload)
raise RuntimeError("the first")
"""),
    ("error in a destructor at exit", "RuntimeError: the first", """
class Writer:
    def __del__(self):
        raise OSError("closed")
writer = Writer()
raise RuntimeError("the first")
"""),
    ("error of a future that nobody asked", "RuntimeError: the first", """
import asyncio
async def lost():
    raise OSError("lost")
async def main():
    task = asyncio.ensure_future(lost())
    await asyncio.sleep(0)
    raise RuntimeError("the first")
asyncio.run(main())
"""),
    ("exit with text", "last output: no training data in /data", """
import sys
print("step 1", file=sys.stderr)
sys.exit("no training data in /data")
"""),
    ("exit with a text of several lines", "last output: the checkpoint does not fit: it has 12 layers, the model has 24", """
import sys
sys.exit("the checkpoint does not fit:\\n  it has 12 layers,\\n  the model has 24")
"""),
    ("exit with code", "last output: tokenizer not found", """
import logging, sys
logging.basicConfig(format="%(message)s")
logging.error("tokenizer not found")
sys.exit(3)
"""),
    ("exit with code and nothing else", "-", """
import sys
sys.exit(3)
"""),
    ("os._exit", "last output: the disk is gone", """
import os, sys
print("the disk is gone", file=sys.stderr)
os._exit(5)
"""),
    ("argparse", "train.py: error: argument --lr: invalid float value: 'fast'", """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.parse_args(["--lr", "fast"])
"""),
    ("argparse with unknown arguments", "train.py: error: unrecognized arguments: --local-rank=0", """
import argparse
parser = argparse.ArgumentParser(usage="%(prog)s [-h] " + " ".join(f"[--option-{n} N]" for n in range(60)))
parser.parse_args(["--local-rank=0"])
"""),
    ("click", "Error: Missing option '--lr'.", """
import click
@click.command()
@click.option("--lr", required=True)
def main(lr):
    pass
main([])
"""),
    ("typer", "Error: Missing option '--lr'.", """
import typer
def main(lr: float = typer.Option(...)):
    pass
app = typer.Typer(add_completion=False)
app.command()(main)
app([])
"""),
    ("typer's traceback", "ValueError: bad shape", """
import typer
app = typer.Typer(add_completion=False)
@app.command()
def main():
    raise ValueError("bad shape")
app([])
"""),
    ("rich's traceback", "ValueError: bad shape", """
import rich.traceback
rich.traceback.install(show_locals=True)
shape = 3
raise ValueError("bad shape")
"""),
    ("hydra", "ZeroDivisionError: division by zero", """
import hydra
@hydra.main(version_base=None)
def main(config):
    return 1 / 0
main()
"""),
    ("hydra's override", "last output: Key 'lr' is not in struct full_key: lr object_type=dict", """
import hydra, sys
sys.argv = ["train.py", "lr=0.1"]
@hydra.main(version_base=None)
def main(config):
    pass
main()
"""),
    ("absl's flags", "FATAL Flags parsing error: Unknown command line flag 'batch'. Did you mean: bath ?", """
from absl import app, flags
flags.DEFINE_integer("bath", 1, "size")
import sys
sys.argv = ["train.py", "--batch=3"]
app.run(lambda argv: None)
"""),
    ("absl's fatal log", "F1126 12:00:00.000000 1234 train.py:3] the mesh has no device", """
from absl import logging
logging.use_absl_handler()
logging.fatal("the mesh has no device")
"""),
    ("loguru", "ZeroDivisionError: division by zero", """
import sys
from loguru import logger
def train():
    try:
        1 / 0
    except ZeroDivisionError:
        logger.exception("training failed")
        sys.exit(1)
train()
"""),
    ("logged and left", "ZeroDivisionError: division by zero", """
import logging, sys
logging.basicConfig(level="INFO", format="%(levelname)s:%(name)s:%(message)s")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("training failed")
    logging.info("closing the writers")
    sys.exit(1)
"""),
    ("handled, then another", "zipfile.BadZipFile: File is not a zip file", """
import io, sys, traceback, zipfile
try:
    import apex_of_nobody
except ImportError:
    traceback.print_exc()
for step in range(3):
    print(f"step {step} loss 0.5", file=sys.stderr)
zipfile.ZipFile(io.BytesIO(b"x"))
"""),
    ("handled, then exit with text", "last output: no data left after 3 steps", """
import sys, traceback
try:
    {}["cache"]
except KeyError:
    traceback.print_exc()
for step in range(3):
    print(f"step {step} loss 0.5", file=sys.stderr)
sys.exit("no data left after 3 steps")
"""),
    ("handled, then os._exit", "last output: step 2 loss 0.5", """
import logging, os, sys
try:
    {}["cache"]
except KeyError:
    logging.exception("no cache")
for step in range(3):
    print(f"step {step} loss 0.5", file=sys.stderr)
os._exit(4)
"""),
    ("handled, then killed", "-", """
import os, signal, sys, traceback
try:
    {}["cache"]
except KeyError:
    traceback.print_exc()
for step in range(3):
    print(f"step {step} loss 0.5", file=sys.stderr)
os.kill(os.getpid(), signal.SIGKILL)
"""),
    ("handled, then much log, then killed", "-", """
import os, signal, sys, traceback
try:
    {}["cache"]
except KeyError:
    traceback.print_exc()
for n in range(60):
    print(f"loaded shard {n}", file=sys.stderr)
os.kill(os.getpid(), signal.SIGKILL)
"""),
    ("handled, then crashed", "Fatal Python error: Segmentation fault", """
import faulthandler, os, signal, sys, traceback
faulthandler.enable()
try:
    {}["cache"]
except KeyError:
    traceback.print_exc()
for step in range(3):
    print(f"step {step} loss 0.5", file=sys.stderr)
signal.raise_signal(signal.SIGSEGV)
"""),
    ("tracker's summary after it", "ValueError: loss is nan", """
import os
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_DIR"] = os.getcwd()
os.environ["WANDB_SILENT"] = "false"
import wandb
run = wandb.init(project="p", settings=wandb.Settings(console="off"))
for step in range(30):
    run.log({f"metric_{n}": n for n in range(25)})
raise ValueError("loss is nan")
"""),
    ("leaked semaphores after it", "ValueError: loss is nan", """
import multiprocessing, multiprocessing.resource_tracker, os
semaphores = [multiprocessing.Semaphore() for _ in range(3)]
import atexit
atexit.register(lambda: None)
multiprocessing.resource_tracker._resource_tracker._send("REGISTER", "/nothing-here", "semaphore")
raise ValueError("loss is nan")
"""),
    ("torchrun inside", "ValueError: bad shape", """
#!/bin/sh
cat > inner.py <<END
def train():
    raise ValueError("bad shape")
train()
END
exec python -m torch.distributed.run --standalone --nproc-per-node=2 inner.py
"""),
    ("torchrun inside, silent child", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: inner.py FAILED", """
#!/bin/sh
echo 'import os; os._exit(7)' > inner.py
exec python -m torch.distributed.run --standalone --nproc-per-node=1 inner.py
"""),
    ("command that failed", "ValueError: bad shape", """
import subprocess, sys
open("inner.py", "w").write("raise ValueError('bad shape')\\n")
subprocess.run([sys.executable, "inner.py"], check=True)
"""),
    ("command that failed silently", "subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.", """
import subprocess
subprocess.run(["false"], check=True)
"""),
    ("torch's prefix", "ValueError: bad shape", """
import os
import torch.distributed as dist
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def train():
    raise ValueError("bad shape")
train()
"""),
    ("device-side assert", "torch.AcceleratorError: CUDA error: device-side assert triggered CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1 Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for thread in range(6):
    print(f"../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [{thread},0,0] Assertion `t >= 0 && t < n_classes` failed.", file=sys.stderr)
frames = "".join(f"frame #{n}: c10::cuda::ExchangeDevice(signed char) + 0x{n:x} (0x7f0000{n:06x} in /usr/lib/libtorch_python.so)\\n" for n in range(45))
raise torch.AcceleratorError("CUDA error: device-side assert triggered\\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\\n\\nException raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):\\n" + frames)
"""),
    ("C++ frames", "RuntimeError: CUDA error: an illegal memory access was encountered", """
frames = "".join(f"frame #{n}: c10::cuda::ExchangeDevice(signed char) + 0x{n:x} (0x7f0000{n:06x} in /usr/lib/libtorch_python.so)\\n" for n in range(45))
raise RuntimeError("CUDA error: an illegal memory access was encountered\\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\\n\\nException raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):\\n" + frames)
"""),
    ("duplicate GPU", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5 ncclInvalidUsage: This usually reflects invalid usage of NCCL library. Last error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000", """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raise dist.DistBackendError("NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\\nLast error:\\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000")
"""),
    ("out of memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free.", """
import torch
raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free.")
"""),
    ("peer lost", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:35093", """
raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:35093")
"""),
    ("C++ exception", "terminate called after throwing an instance of 'c10::DistBackendError' what(): NCCL watchdog thread terminated with exception: Connection closed by peer", CXX + """
lib.raise_it(b"NCCL watchdog thread terminated with exception: Connection closed by peer")
"""),
    ("C++ exception of several lines", "terminate called after throwing an instance of 'c10::DistBackendError' what(): [PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered CUDA kernel errors might be asynchronously reported", CXX + """
lib.raise_it(b"[PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\\nCUDA kernel errors might be asynchronously reported\\n\\nException raised from c10_cuda_check_implementation\\nframe #0: c10::Error\\nframe #1: more")
"""),
    ("C++ exception without a text", "terminate called after throwing an instance of 'c10::Odd'", CXX + """
lib.raise_odd()
"""),
    ("C++ thread at exit", "terminate called without an active exception", CXX + """
lib.leave_thread()
"""),
    ("C++ thread after an exception", "ValueError: bad shape", CXX + """
import atexit
atexit.register(lib.leave_thread)
raise ValueError("bad shape")
"""),
    ("C++ exception with faulthandler", "terminate called after throwing an instance of 'c10::DistBackendError' what(): boom", CXX + """
import faulthandler
faulthandler.enable()
lib.raise_it(b"boom")
"""),
    ("double free", "free(): double free detected in tcache 2", """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
p = ctypes.c_void_p(libc.malloc(24))
libc.free(p)
libc.free(p)
"""),
    ("stack smashed", "*** stack smashing detected ***: terminated", """
import ctypes
ctypes.CDLL(None).__stack_chk_fail()
"""),
    ("assertion of C", "python: kernel.c:12: launch: Assertion `blocks > 0' failed.", """
import ctypes
ctypes.CDLL(None).__assert_fail(b"blocks > 0", b"kernel.c", 12, b"launch")
"""),
    ("segmentation fault, unseen", "-", """
import signal
signal.raise_signal(signal.SIGSEGV)
"""),
    ("segmentation fault, seen", "Fatal Python error: Segmentation fault", """
import ctypes, faulthandler
faulthandler.enable()
ctypes.string_at(0)
"""),
    ("killed", "-", """
import os, signal, sys
print("step 1", file=sys.stderr)
os.kill(os.getpid(), signal.SIGKILL)
"""),
    ("killed below a shell", "/job/train.sh: line 2: 1234 Killed python -c 'import os; os.kill(os.getpid(), 9)'", """
#!/bin/bash
python -c 'import os; os.kill(os.getpid(), 9)'
exit $?
"""),
    ("crashed below a shell", "/job/train.sh: line 2: 1234 Segmentation fault python -c 'import os; os.kill(os.getpid(), 11)'", """
#!/bin/bash
python -c 'import os; os.kill(os.getpid(), 11)'
exit $?
"""),
    ("no such command", "/job/train.sh: line 3: trian: command not found", """
#!/bin/bash
echo starting >&2
trian --lr 1
"""),
    ("no such command in dash", "/job/train.sh: 2: trian: not found", """
#!/bin/dash
trian --lr 1
"""),
    ("not executable", "/job/train.sh: line 3: ./run: Permission denied", """
#!/bin/bash
echo 'exit 0' > run
./run
"""),
    ("no interpreter", "/job/train.sh: line 4: ./run: cannot execute: required file not found", """
#!/bin/bash
printf '#!/opt/nowhere/python3\\n' > run
chmod +x run
./run
"""),
    ("no such program for env", "/usr/bin/env: ‘python9’: No such file or directory", """
#!/bin/bash
printf '#!/usr/bin/env python9\\n' > run
chmod +x run
./run
"""),
    ("unset variable", "/job/train.sh: line 3: DATA: unbound variable", """
#!/bin/bash
set -u
echo "$DATA"
"""),
    ("syntax of a shell", "/job/train.sh: line 4: syntax error: unexpected end of file", """
#!/bin/bash
if true; then
echo x
"""),
    ("no such script", "python: can't open file '/job/trian.py': [Errno 2] No such file or directory", """
#!/bin/sh
exec python trian.py
"""),
    ("no such module to run", "python: No module named trian", """
#!/bin/sh
exec python -m trian
"""),
    ("no such library", "./run: error while loading shared libraries: libnothing.so: cannot open shared object file: No such file or directory", """
#!/bin/sh
echo 'void f(void){}' | gcc -shared -fPIC -xc - -o libnothing.so
echo 'void f(void); int main(){f();}' | gcc -xc - -xnone -L. -lnothing -o run
rm libnothing.so
exec ./run
"""),
    ("interrupted", "KeyboardInterrupt", """
import signal
signal.raise_signal(signal.SIGINT)
"""),
    ("progress bar closed after it", "ValueError: loss is nan", """
import tqdm
bar = tqdm.tqdm(total=100)
bar.update(7)
raise ValueError("loss is nan")
"""),
    ("warnings after it", "ValueError: loss is nan", """
import atexit, warnings
atexit.register(lambda: warnings.warn("the pool was not closed", ResourceWarning))
warnings.simplefilter("always")
raise ValueError("loss is nan")
"""),
    ("only warnings", "last output: /job/train.py:2: UserWarning: deprecated", """
import sys, warnings
warnings.warn("deprecated")
sys.exit(3)
"""),
    ("text with a traceback", "RuntimeError: the worker failed: ValueError: inner", """
import traceback
try:
    raise ValueError("inner")
except ValueError:
    text = traceback.format_exc()
raise RuntimeError("the worker failed:\\n" + text) from None
"""),
    ("own hook", "KeyError: 'lr'", """
import logging, sys
logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="12:00:00")
sys.excepthook = lambda *what: logging.critical("unhandled", exc_info=what)
{}["lr"]
"""),
    ("prefix of another", "KeyError: 'lr'", """
import sys, traceback
try:
    {}["lr"]
except KeyError:
    for line in traceback.format_exc().splitlines():
        print(f"(train pid=12) {line}", file=sys.stderr)
sys.exit(1)
"""),
    ("wandb's summary after it", "ValueError: loss is nan", """
import atexit, sys
def summary():
    print("wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.\\nwandb:", file=sys.stderr)
    for part in ("history", "summary"):
        print(f"wandb: Run {part}:", file=sys.stderr)
        for n in range(20):
            print(f"wandb:   metric_{n} 0.{n}", file=sys.stderr)
    print("wandb: Synced 5 W&B file(s), 0 media file(s)\\nwandb: Find logs at: ./wandb/run-1/logs", file=sys.stderr)
atexit.register(summary)
raise ValueError("loss is nan")
"""),
    ("another tracker's summary after it", "ValueError: loss is nan", """
import atexit, sys
def summary():
    print("Experiment summary", file=sys.stderr)
    for n in range(40):
        print(f"metric_{n:<20} min 0.{n} max 1.{n}", file=sys.stderr)
    print("See https://tracker.invalid/runs/7", file=sys.stderr)
atexit.register(summary)
raise ValueError("loss is nan")
"""),
    ("an error that an exit handler has handled", "ValueError: loss is nan", """
import atexit, logging, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def upload():
    try:
        raise OSError("no uplink")
    except OSError:
        logging.exception("the upload failed")
atexit.register(upload)
raise ValueError("loss is nan")
"""),
    ("a context manager that fails too", "OSError: cannot close", """
class Writer:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        raise OSError("cannot close")
with Writer():
    raise ValueError("loss is nan")
"""),
    ("a shell that goes on", "ValueError: bad shape", """
#!/bin/bash
echo 'raise ValueError("bad shape")' > inner.py
python inner.py || { echo "training failed, see above" >&2; exit 3; }
"""),
    ("torch's warnings after it", "ValueError: bad shape", """
import sys
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import atexit
atexit.register(lambda: print("[rank0]:[W1126 12:00:00.000000 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. (function operator())", file=sys.stderr))
raise ValueError("bad shape")
"""),
    ("chain with torch's prefix", "RuntimeError: no config", """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
try:
    {}["lr"]
except KeyError as error:
    raise RuntimeError("no config") from error
"""),
    ("group with torch's prefix", "ExceptionGroup: two (2 sub-exceptions): ValueError: a; KeyError: 'b'", """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])
"""),
    ("barrier that timed out", "RuntimeError: Rank 0 failed to pass monitoredBarrier Original exception: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1", """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
raise RuntimeError("Rank 0 failed to pass monitoredBarrier\\n Original exception: \\n[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
"""),
    ("handled, then crashed at once", "Fatal Python error: Segmentation fault", """
import faulthandler, signal, traceback
faulthandler.enable()
try:
    {}["cache"]
except KeyError:
    traceback.print_exc()
signal.raise_signal(signal.SIGSEGV)
"""),
    ("crashed in an exit handler", "RuntimeError: the first", """
import atexit, faulthandler, signal
faulthandler.enable()
atexit.register(signal.raise_signal, signal.SIGSEGV)
raise RuntimeError("the first")
"""),
    ("own exception around a lost peer", "TrainingFailed: at step 7 (from RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4711)", """
class TrainingFailed(Exception):
    pass
def step():
    raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:4711")
try:
    try:
        step()
    except RuntimeError as error:
        raise OSError("cannot go on") from error
except OSError:
    raise TrainingFailed("at step 7")
"""),
    ("own exception around another", "TrainingFailed: at step 7", """
class TrainingFailed(Exception):
    pass
try:
    {}["label"]
except KeyError as error:
    raise TrainingFailed("at step 7") from error
"""),
    ("a Rust library", "pyo3_runtime.PanicException: index out of range", """
import sys
class PanicException(BaseException):
    pass
PanicException.__module__ = "pyo3_runtime"
print("thread '<unnamed>' panicked at src/lib.rs:3:9:\\nindex out of range\\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace", file=sys.stderr)
raise PanicException("index out of range")
"""),
]


def run(name, script):
    with tempfile.TemporaryDirectory(prefix="job-") as job:
        script = script.lstrip("\n")
        shell = script.startswith("#!")
        file = "train.sh" if shell else "train.py"
        path = os.path.join(job, file)
        with open(path, "w") as written:
            written.write(script)
        os.chmod(path, 0o755)
        bin = os.path.join(job, "bin")
        os.mkdir(bin)
        with open(os.path.join(bin, "python"), "w") as written:
            written.write(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        os.chmod(os.path.join(bin, "python"), 0o755)
        env = {**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
        command = [path] if shell else [os.path.join(bin, "python"), "-u", path]
        ended = subprocess.run(command, cwd=job, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        code = ended.returncode
        text = ended.stderr.decode(errors="replace")
    text = text.replace(os.path.realpath(job), "/job").replace(job, "/job").replace("/job/bin/python", "python").replace(sys.executable, "python")
    for path in [sysconfig.get_paths()["purelib"], os.environ.get("PYTHONPATH") or "/nowhere"]:
        text = text.replace(path, "/site-packages")
    for path in {sysconfig.get_paths()["stdlib"], os.path.dirname(os.path.realpath(os.__file__))}:
        text = text.replace(path, "/python")
    text = re.sub(r"\r", "", re.sub(r"\x1b\[[0-9;]*m", "", text))
    text = re.sub(r"\b([FEWI])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+", r"\g<1>1126 12:00:00.000000 1234", text)
    text = re.sub(r"(pid\(s\)|\bpid:?|line \d+:) +\d+", r"\1 1234", text).replace(socket.gethostname(), "node-a")
    end = f"signal {-code}" if code < 0 else f"code {code}"
    return end, text


def main():
    wanted = sys.argv[1:]
    for name, reason, script in WAYS:
        if wanted and name not in wanted:
            continue
        end, text = run(name, script)
        print(f"#### {name}\nends with {end}\nreason {reason}")
        for line in text.splitlines():
            print(f"| {line}".rstrip())
        print()


main()
