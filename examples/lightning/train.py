"""Lightning's Trainer over DDP, on the bytes of a text. It saves as it goes, and resumes from the last checkpoint.

An ordinary torchrun script; examples/README.md has the command that runs it. Needs lightning. On several machines --checkpoint-dir must be a
folder that all of them share.
"""

import argparse
import os
import pathlib

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BYTES, CONTEXT = 256, 16


class NextByte(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(BYTES, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 128), nn.ReLU(), nn.Linear(128, BYTES))

    def training_step(self, batch, _index):
        before, after = batch
        loss = cross_entropy(self.net(before), after)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--checkpoint-dir", default="lightning-checkpoint")
    options = parser.parse_args()
    lightning.seed_everything(7)
    pieces = torch.tensor(list(pathlib.Path(__file__).read_bytes())).unfold(0, CONTEXT + 1, 1)
    data = DataLoader(TensorDataset(pieces[:, :-1], pieces[:, -1]), batch_size=16, shuffle=True, drop_last=True)
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        strategy="ddp",
        devices=local,
        num_nodes=world // local,
        max_steps=options.steps,
        logger=False,
        # Its steps can be read from a log, those of the bar that Lightning takes where rich is installed cannot.
        callbacks=[TQDMProgressBar(), ModelCheckpoint(options.checkpoint_dir, every_n_train_steps=options.save_every, save_last=True)],
    )
    trainer.fit(NextByte(), data, ckpt_path="last")  # starts anew if there is none


if __name__ == "__main__":
    main()
