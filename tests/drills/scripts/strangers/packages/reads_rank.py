"""Asks for the rank once, as loggers of training libraries do."""

import os

RANK = os.environ.get("RANK")
