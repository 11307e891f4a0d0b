"""The Trainer of transformers with a small GPT-2 of random weights, on the bytes of a text. It saves as it goes, and resumes from the newest checkpoint.

An ordinary torchrun script; examples/README.md has the command that runs it. Needs transformers and accelerate. On several machines --output-dir
must be a folder that all of them share. The Trainer's bar shows its steps: leave it on (no disable_tqdm).
"""

import argparse
import contextlib
import json
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

BYTES, CONTEXT = 256, 64


class Pieces(torch.utils.data.Dataset):
    """All pieces of a text, a byte for a token."""

    def __init__(self, path):
        self.text = torch.tensor(list(pathlib.Path(path).read_bytes()))

    def __len__(self):
        return len(self.text) - CONTEXT

    def __getitem__(self, at):
        piece = self.text[at : at + CONTEXT]
        return {"input_ids": piece, "labels": piece}


def newest(folder):
    """The newest checkpoint that is whole. The Trainer writes trainer_state.json last; a rank that was killed while it saved leaves none, or half of one."""
    for state in sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: -int(path.parent.name.rpartition("-")[2])):
        with contextlib.suppress(ValueError):
            json.loads(state.read_text())
            return str(state.parent)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--output-dir", type=pathlib.Path, default="trainer-checkpoint")
    options = parser.parse_args()
    set_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=BYTES, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir=str(options.output_dir),
        max_steps=options.steps,
        save_steps=options.save_every,
        save_total_limit=2,
        logging_steps=5,
        per_device_train_batch_size=8,
        learning_rate=0.003,
        report_to=[],
    )
    trainer = Trainer(model, arguments, train_dataset=Pieces(__file__))
    trainer.train(resume_from_checkpoint=newest(options.output_dir))


if __name__ == "__main__":
    main()
