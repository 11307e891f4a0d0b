"""The Trainer of transformers with a tiny model of random weights; it resumes from its last checkpoint."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ["HF_HOME"] = os.path.join(os.path.abspath(sys.argv[1]), "hf")
os.environ["HF_HUB_OFFLINE"] = "1"

import huggingface_hub
import left
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Leave(TrainerCallback):
    def on_log(self, arguments, state, control, logs=None, **rest):
        self.loss = logs.get("loss", 0.0)

    def on_save(self, arguments, state, control, **rest):
        left.step(state.global_step, self.loss)


def main():
    assert huggingface_hub.constants.HF_HOME == os.environ["HF_HOME"], huggingface_hub.constants.HF_HOME
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    set_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    words = torch.randint(64, (8,))
    saved = left.FOLDER / "saved"
    arguments = TrainingArguments(
        output_dir=str(saved), max_steps=left.LAST, per_device_train_batch_size=2, use_cpu=True, logging_steps=1, save_steps=1,
        save_total_limit=2, report_to=[], disable_tqdm=True, learning_rate=0.01, lr_scheduler_type="constant",
    )
    trainer = Trainer(
        model, arguments, train_dataset=[{"input_ids": words, "labels": words}] * 10_000, callbacks=[Leave()],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(saved)) if saved.exists() else None)


if __name__ == "__main__":
    main()
