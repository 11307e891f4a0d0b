"""How much each competitor does in a race that must end within an hour: one row each, with the reason if it is less than everything.

A measurement costs its start and its event. A "never" costs the minute for which it is watched.
"""

ROUNDS = 5
QUICK_ROUNDS = 2
QUICK_EVENTS = ("start", "worker", "node")
QUICK_COMPETITORS = ("fork", "cold", "tuned", "stock", "static", "forks")

# Competitor -> (rounds, events; none: all).
SHARE = {
    "fork": (ROUNDS, ()),
    "tuned": (ROUNDS, ()),
    # It differs from `fork` in what is between an agent and its workers. A death passes through all of it.
    "pods": (ROUNDS, ("worker",)),
    # Only its first start differs from that of `fork`, and every start is measured.
    "pool": (ROUNDS, ("worker",)),
    # It differs from `fork` in what the coordinator and the agents say to each other only.
    "tls": (ROUNDS, ("worker", "node")),
    # It uses the same machinery as `fork` on every path except the launch.
    "direct": (3, ("worker", "node", "resize")),
    "parked": (3, ("worker", "node", "join")),
    # What is not proven takes it, so it must not be slower than torchrun.
    "exec": (3, ()),
    # It is `fork` or `exec`, by what is proven for the interpreter.
    "auto": (3, ("worker", "node", "resize")),
    "cold": (3, ()),
    # Most of its events are a minute of "never".
    "stock": (2, ()),
    # The rivals of c10d differ in how they notice a failure. The re-form is the same.
    "etcd": (2, ("worker", "node")),
}
# A competitor that never re-formed in this many rounds is not asked again.
NEVERS = 2


def takes_part(key, event, number, options, runs):
    """Whether this competitor is measured in this round, by the plan and by its earlier results."""
    if key not in SHARE:
        return False
    rounds, events = SHARE[key]
    if options.planned and (number >= rounds or (events and event not in events)):
        return False
    before = [run["seconds"] for run in runs if run["competitor"] == key and run["event"] == event]
    return len(before) < NEVERS or any(seconds is not None for seconds in before)
