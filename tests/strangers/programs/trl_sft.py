"""TRL's SFTTrainer with a tiny model of random weights and a vocabulary made here; it resumes from its last checkpoint."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ["HF_HOME"] = os.path.join(os.path.abspath(sys.argv[1]), "hf")
os.environ["HF_HUB_OFFLINE"] = "1"

import left
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint
from trl import SFTConfig, SFTTrainer

WORDS = ["<pad>", "<eos>", "<unk>", *"nobody trains alone and whoever falls is replaced".split()]


class Leave(TrainerCallback):
    def on_log(self, arguments, state, control, logs=None, **rest):
        self.loss = logs.get("loss", 0.0)

    def on_save(self, arguments, state, control, **rest):
        left.step(state.global_step, self.loss)


def main():
    set_seed(7)
    vocabulary = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )
    saved = left.FOLDER / "saved"
    arguments = SFTConfig(
        output_dir=str(saved), max_steps=left.LAST, per_device_train_batch_size=2, use_cpu=True, bf16=False, logging_steps=1, save_steps=1,
        save_total_limit=2, report_to=[], disable_tqdm=True, learning_rate=0.01, lr_scheduler_type="constant", max_length=16,
        gradient_checkpointing=False,
    )
    samples = Dataset.from_dict({"text": [" ".join(WORDS[3:])] * 400})
    trainer = SFTTrainer(GPT2LMHeadModel(config), arguments, train_dataset=samples, processing_class=tokenizer, callbacks=[Leave()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(saved)) if saved.exists() else None)


if __name__ == "__main__":
    main()
