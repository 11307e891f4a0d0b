"""Its import takes long, and from then on it keeps a thread that answers, like pyarrow and the writers of metrics.

Every process that imports it is noted in the file that STRANGER_IMPORTERS names.
"""

import os
import queue
import threading
import time

questions, answers = queue.Queue(), queue.Queue()


def answer():
    while True:
        answers.put(2 * questions.get())


def ask(number):
    questions.put(number)
    return answers.get(timeout=60)


if "STRANGER_IMPORTERS" in os.environ:
    with open(os.environ["STRANGER_IMPORTERS"], "a") as importers:
        importers.write(f"{os.getpid()}\n")
time.sleep(1)
threading.Thread(target=answer, daemon=True).start()
