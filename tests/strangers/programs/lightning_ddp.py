"""PyTorch Lightning's Trainer over DDP; it resumes from its last checkpoint."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import left
import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)

    def training_step(self, batch, at):
        seen, wanted = batch
        out = self.layers(seen)
        self.accuracy(out, wanted)
        self.log("accuracy", self.accuracy, sync_dist=True)
        return torch.nn.functional.cross_entropy(out, wanted)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Leave(Checkpoint):
    """A checkpoint callback. These run last and in their order, so a step is saved before the world is held at it."""

    def on_train_batch_end(self, trainer, module, outputs, batch, at):
        left.step(trainer.global_step, outputs["loss"])


def main():
    lightning.seed_everything(7)
    # It trains on one sample repeatedly, so the losses are the same for every size of the world.
    samples = TensorDataset(torch.rand(1, 8).repeat(10_000, 1), torch.ones(10_000, dtype=torch.long))
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    callbacks = [ModelCheckpoint(left.FOLDER / "saved", every_n_train_steps=1, save_last=True, save_top_k=0), Leave()]
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=local, num_nodes=int(os.environ["WORLD_SIZE"]) // local, max_steps=left.LAST,
        callbacks=callbacks, logger=False, enable_progress_bar=False, enable_model_summary=False,
    )
    saved = left.FOLDER / "saved" / "last.ckpt"
    loader = DataLoader(samples, batch_size=4, num_workers=1, persistent_workers=True)
    trainer.fit(Model(), loader, ckpt_path=str(saved) if saved.exists() else None)


if __name__ == "__main__":
    main()
