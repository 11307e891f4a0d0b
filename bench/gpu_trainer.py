"""transformers' Trainer for bench/gpu.py: a model of 4 layers, made from its configuration, that goes on from its last checkpoint.

Arguments: a folder, which gets the same files as from `gpu_step.py`; `tiny` makes the model small enough for a CPU. Needs the packages transformers
and accelerate; nothing is downloaded.
"""

import json
import os
import pathlib
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

FOLDER, FORMS = pathlib.Path(sys.argv[1]), sys.argv[2:]
START = len(list(FOLDER.glob("begun.*.json")))
WIDTH = 64 if "tiny" in FORMS else 512


def leave(name):
    part = FOLDER / f"{name}.part"
    part.write_text(json.dumps({"at": time.monotonic(), "pid": os.getpid()}))
    part.rename(FOLDER / f"{name}.json")


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        words = torch.randint(1000, (128,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def last_checkpoint(out):
    """The last one that was written whole: a kill may have come in the middle, and the Trainer writes this file at the end."""
    whole = [state.parent for state in out.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=lambda folder: int(folder.name.partition("-")[2]), default=None)


class Told(TrainerCallback):
    first = True

    def on_step_end(self, arguments, state, control, **_):
        print(f"step={state.global_step}", flush=True)
        if self.first:
            leave(f"step.{START}")
            self.first = False


def main():
    leave(f"begun.{START}")
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=WIDTH, n_head=WIDTH // 64, vocab_size=1000, n_positions=128))
    out = FOLDER / "trainer"
    settings = TrainingArguments(
        output_dir=str(out), max_steps=1_000_000, per_device_train_batch_size=4, save_steps=100, save_total_limit=2, report_to=[], disable_tqdm=True
    )
    trainer = Trainer(model=model, args=settings, train_dataset=Sentences(), callbacks=[Told()])
    checkpoint = last_checkpoint(out)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


if __name__ == "__main__":
    main()
