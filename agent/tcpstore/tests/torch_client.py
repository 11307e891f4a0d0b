"""Calls every method of torch's TCPStore client on the store at sys.argv[1], and prints one line for each part that passed.

torch_client.rs runs this. It names the methods that this torch lacks, and does not skip them silently. The caller checks that.
"""

import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

host, port = sys.argv[1].rsplit(":", 1)


def connect(seconds=30, **more):
    return dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=seconds), **more)


def raises(kind, call):
    try:
        call()
    except kind as e:
        return str(e)
    raise AssertionError(f"{kind.__name__} expected")


def later(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def arrived(client):
    """Waits until other clients can see all that this client has set or pushed. Neither has an answer, but the next answer comes after them."""
    client.num_keys()


parts = []


def part(check):
    parts.append(check)
    return check


@part
def set_get(a, b):
    a.set("key", "value")
    a.set("bytes", bytes(range(256)).decode("latin-1"))
    a.set("empty", "")
    assert b.get("key") == b"value"
    assert b.get("bytes").decode() == bytes(range(256)).decode("latin-1")
    assert b.get("empty") == b""
    a.set("large", "x" * (8 << 20))
    assert len(b.get("large")) == 8 << 20


@part
def add(a, b):
    assert a.add("n", 1) == 1
    assert b.add("n", -3) == -2
    assert a.get("n") == b"-2"


@part
def add_to_text(a, b):
    c = connect()
    c.set("text", "abc")
    raises(RuntimeError, lambda: c.add("text", 1))
    assert b.get("text") == b"abc", "only the client that asked is closed"


@part
def get_waits(a, b):
    thread = later(lambda: b.set("later", "1"))
    assert a.get("later") == b"1"
    thread.join()


@part
def wait(a, b):
    message = raises(dist.DistStoreError, lambda: a.wait(["never"], timedelta(milliseconds=200)))
    assert "timeout" in message.lower(), message
    a.set("w1", "")
    assert a.get("w1") == b"", "the connection is in step after a cancelled wait"
    thread = later(lambda: (b.set("w2", "1"), b.set("w3", "1")))
    a.wait(["w1", "w2", "w3"], timedelta(seconds=30))
    thread.join()


@part
def get_times_out(a, b):
    c = connect(seconds=1)
    raises(dist.DistStoreError, lambda: c.get("never"))
    c.set("after", "1")
    assert c.get("after") == b"1"


@part
def compare_set(a, b):
    assert a.compare_set("cas", "old", "new") == b"old"
    assert not a.check(["cas"])
    assert a.compare_set("cas", "", "new") == b"new"
    assert b.compare_set("cas", "old", "newer") == b"new"
    assert b.compare_set("cas", "new", "newer") == b"newer"
    assert a.get("cas") == b"newer"


@part
def check(a, b):
    a.set("there", "1")
    arrived(a)
    assert b.check(["there"])
    assert not b.check(["there", "not there"])


@part
def num_keys_delete_key(a, b):
    before = a.num_keys()
    a.set("gone", "1")
    assert a.num_keys() == before + 1
    assert b.delete_key("gone")
    assert not b.delete_key("gone")
    assert a.num_keys() == before


@part
def append(a, b):
    assert a.has_extended_api()
    a.append("list", "one")
    a.append("list", ",two")
    assert a.get("list") == b"one,two"
    assert b.get("list") == b"one,two"


@part
def multi(a, b):
    keys = [f"m{i}" for i in range(1000)]
    a.multi_set(keys, [f"v{i}" for i in range(1000)])
    assert b.multi_get(keys) == [f"v{i}".encode() for i in range(1000)]
    thread = later(lambda: b.multi_set(["x", "y"], ["1", "2"]))
    assert a.multi_get(["x", "y"]) == [b"1", b"2"]
    thread.join()


@part
def queue(a, b):
    if not hasattr(a, "queue_push"):
        print("absent queue")
        return
    raises(dist.QueueEmptyError, lambda: a.queue_pop("q", block=False))
    assert a.queue_len("q") == 0
    a.queue_push("q", "1")
    a.queue_push("q", "2")
    arrived(a)
    assert b.queue_len("q") == 2
    assert a.check(["q"])
    assert b.queue_pop("q") == b"1"
    assert a.queue_pop("q", block=False) == b"2"
    assert not a.check(["q"])
    # One client at a time. torch's client pops in two steps, so if two clients pop at once, either may find the queue empty.
    got = []
    thread = later(lambda: got.append(b.queue_pop("q")))
    a.queue_push("q", "3")
    thread.join()
    assert got == [b"3"], got


@part
def list_keys(a, b):
    if not hasattr(a, "list_keys"):
        print("absent list_keys")
        return
    a.set("listed", "1")
    arrived(a)
    assert "listed" in b.list_keys()
    assert len(b.list_keys()) <= b.num_keys()


@part
def barrier(a, b):
    if not hasattr(a, "barrier"):
        print("absent barrier")
        return
    raises(dist.DistStoreError, lambda: a.barrier("alone", 2, timedelta(milliseconds=200)))
    thread = later(lambda: b.barrier("both", 2, timedelta(seconds=30)))
    a.barrier("both", 2, timedelta(seconds=30))
    thread.join()


@part
def clone(a, b):
    if not hasattr(a, "clone"):
        print("absent clone")
        return
    c = a.clone()
    c.set("cloned", "1")
    assert a.get("cloned") == b"1"


@part
def prefixes_and_store_barrier(a, b):
    from torch.distributed.elastic.utils.store import barrier

    def member():
        store = dist.PrefixStore("job", dist.PrefixStore("inner", connect()))
        barrier(store, 8, "done", barrier_timeout=30)

    threads = [later(member) for _ in range(8)]
    for thread in threads:
        thread.join()
    assert a.get("inner/job/done/num_members") == b"8"


@part
def many_workers(a, b):
    stores = []
    threads = [later(lambda: stores.append(connect(world_size=4, wait_for_workers=True))) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert len(stores) == 4


@part
def old_backend_flag(a, b):
    c = connect(use_libuv=False)
    c.set("flag", "1")
    assert b.get("flag") == b"1"


print("torch", torch.__version__)
for check in parts:
    check(connect(), connect())
    print("ok", check.__name__, flush=True)
