"""A GPT of 6 layers for bench/gpu.py: AdamW, a checkpoint of 600 MB that the next start loads, and torch.compile on request.

Arguments: a folder, and `compile` for the second form. The folder gets the same files as from `gpu_step.py`. `tiny` makes it small enough for a CPU.
"""

import json
import os
import pathlib
import sys
import time

import torch
from torch import distributed, nn

FOLDER, FORMS = pathlib.Path(sys.argv[1]), sys.argv[2:]
START = len(list(FOLDER.glob("begun.*.json")))
# 50 million parameters, and as many numbers twice in AdamW: 600 MB in float32.
WIDTH, WORDS, LENGTH, LAYERS, BATCH = (64, 256, 32, 2, 2) if "tiny" in FORMS else (768, 8192, 512, 6, 8)
SAVE_EVERY = 100


def leave(name):
    part = FOLDER / f"{name}.part"
    part.write_text(json.dumps({"at": time.monotonic(), "pid": os.getpid()}))
    part.rename(FOLDER / f"{name}.json")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = [part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, dim=-1)]
        x = x + self.out(nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.think(self.after(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.last = nn.Sequential(*[Block() for _ in range(LAYERS)]), nn.LayerNorm(WIDTH)

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        return self.last(self.blocks(x)) @ self.words.weight.T


def main():
    leave(f"begun.{START}")
    on_gpu = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    net = Gpt().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    checkpoint, step = FOLDER / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(net)
    if "compile" in FORMS:
        model = torch.compile(model)
    words = torch.randint(WORDS, (BATCH, LENGTH), device=device)
    first = True
    while True:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = model(words)
        loss = nn.functional.cross_entropy(scores[:, :-1].float().flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step={step} loss={loss.item():.6f}", flush=True)
        if first:
            leave(f"step.{START}")
            first = False
        if step % SAVE_EVERY == 0 or step == 1:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint.with_suffix(".part"))
            checkpoint.with_suffix(".part").rename(checkpoint)
        time.sleep(0.02)


main()
