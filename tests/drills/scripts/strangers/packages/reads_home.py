"""Reads the place of its files once, as huggingface_hub reads HF_HOME."""

import os

HOME = os.environ.get("STRANGER_HOME", "nowhere")
