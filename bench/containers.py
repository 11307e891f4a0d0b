"""Containers without an engine: PID and mount namespaces of their own, by `unshare`, as tests/drills/tests/pods.rs makes them.

All else is the machine's: its network, users, files and limits.
"""

import subprocess

# Like most containers, these cannot make a cgroup. When the first process in one ends, so does everything in it.
INSIDE = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\""
COMMAND = ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--kill-child", "sh", "-c", INSIDE, "sh"]


class Missing(Exception):
    """Why no container can be made."""


def check():
    """Raises Missing unless this machine permits such containers."""
    try:
        tried = subprocess.run([*COMMAND, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Missing(f"no containers here: {problem}") from None
    if tried.returncode:
        said = tried.stderr.strip() or f"exit code {tried.returncode}"
        raise Missing(f"no containers here ({said}); they need root, or CAP_SYS_ADMIN, and util-linux's unshare")
