"""Who does how much in a race that shall end within an hour: a row a competitor, and the reason where it is less than everything.

A measurement costs its start and its event; a "never" costs the minute it is watched.
"""

ROUNDS = 5
QUICK_ROUNDS = 2
QUICK_EVENTS = ("start", "worker", "node")
QUICK_COMPETITORS = ("fork", "cold", "tuned", "stock", "static", "forks")

# Competitor -> (rounds, events; none: all).
SHARE = {
    "fork": (ROUNDS, ()),
    "tuned": (ROUNDS, ()),
    # Only its first start differs from that of fork, and each start is measured.
    "pool": (ROUNDS, ("worker",)),
    # The same machinery as fork on every path but the launch.
    "direct": (3, ("worker", "node", "resize")),
    "parked": (3, ("worker", "node", "join")),
    "cold": (3, ()),
    # Mostly a minute of never.
    "stock": (2, ()),
    # c10d's rivals differ in how they find out; its re-form is the same.
    "etcd": (2, ("worker", "node")),
}
# Who did not re-form in as many rounds, and never did, is not asked again.
NEVERS = 2


def takes_part(key, event, number, options, runs):
    """Whether this competitor is measured in this round, by the plan and by what it has shown."""
    if key not in SHARE:
        return False
    rounds, events = SHARE[key]
    if options.planned and (number >= rounds or (events and event not in events)):
        return False
    before = [run["seconds"] for run in runs if run["competitor"] == key and run["event"] == event]
    return len(before) < NEVERS or any(seconds is not None for seconds in before)
