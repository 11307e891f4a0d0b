"""transformers' Trainer for the goodput bench: it saves every few steps, and goes on from its last whole checkpoint.

Arguments as of saved_step.py, and it leaves the same: after each step every rank appends `NANOSECONDS STEP WORLD RANK` to a file of its own. Needs
the packages transformers and accelerate; the model is made from its configuration, and nothing is downloaded.
"""

import os
import pathlib
import sys
import time

import gpu_trainer
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Told(TrainerCallback):
    def __init__(self, out):
        self.out = out

    def on_step_end(self, arguments, state, control, **_):
        if arguments.process_index == 0:
            print(f"step={state.global_step}", flush=True)
        self.out.write(f"{time.monotonic_ns()} {state.global_step} {arguments.world_size} {arguments.process_index}\n")
        time.sleep(0.05)  # stands for a model of some size


def main(folder, every):
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=64, n_head=1, vocab_size=1000, n_positions=128))
    saved = folder / "trainer"
    settings = TrainingArguments(
        output_dir=str(saved), max_steps=1_000_000, per_device_train_batch_size=1, save_steps=every, save_total_limit=2, report_to=[],
        disable_tqdm=True, use_cpu=True,
    )
    with open(folder / f"{os.getpid()}.steps", "a", buffering=1) as out:
        trainer = Trainer(model=model, args=settings, train_dataset=gpu_trainer.Sentences(), callbacks=[Told(out)])
        checkpoint = gpu_trainer.last_checkpoint(saved)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
