"""How small a job may become, how often it should save, and how many restarts it needs: a model of machines that come and go.

    python bench/sizing.py --write                                            writes the tables of docs/elasticity.md
    python bench/sizing.py --nodes 16 --back 30 --save 20                     for another job: 16 nodes, half an hour until a new machine, 20 s a save

The model: each machine runs for a random time (exponential, mean `--every` hours), and its successor comes after `--back` minutes on average. Machines
do not fail together. A job of `--nodes` nodes trains while at least `min` are there, and k nodes do k/N of the work. Every loss and every return costs
the re-form, and half a save interval of training again. Each save costs `--save` seconds. The save interval is the best one under these numbers.
A machine that is reclaimed without notice says nothing any more, so its loss costs what bench/race.py has measured for a node that was frozen. With notice,
a change costs a planned resize and one save. torchrun is taken at its figure for a node whose processes were killed, which is kinder: it did not re-form
at all beside a frozen one. `requeue` stands for a job that is submitted anew by a person or a queue.
"""

import argparse
import json
import math
import pathlib
import statistics

import report

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
PAGE = report.ROOT / "docs" / "elasticity.md"
HOUR, MINUTE = 3600.0, 60.0
SAVES = [10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600, 7200]
REQUEUE = 300.0


def there(nodes, up, back):
    """For each number of nodes, the share of time in which exactly so many are there."""
    share = up / (up + back)
    return [math.comb(nodes, k) * share**k * (1 - share) ** (nodes - k) for k in range(nodes + 1)]


def useful(nodes, least, up, back, reform, save, interval):
    """Work done, as a share of what all nodes would do that never fail and never save."""
    total = 0.0
    for k, share in enumerate(there(nodes, up, back)):
        if k < least:
            continue
        interruptions = k / up + (nodes - k) / back
        lost = interruptions * (reform + interval / 2) + save / interval
        total += share * k / nodes * max(0.0, 1 - lost)
    return total


def announced(nodes, least, up, back, reform, save):
    """The same if every change is announced, and the job saves when it is told to stop: nothing is trained again."""
    return sum(
        share * k / nodes * max(0.0, 1 - (k / up + (nodes - k) / back) * (reform + save))
        for k, share in enumerate(there(nodes, up, back))
        if k >= least
    )


def best(nodes, least, up, back, reform, save):
    """The best share, and the save interval with which it is reached."""
    return max((useful(nodes, least, up, back, reform, save, interval), -interval) for interval in SAVES)


def budget(expected, risk=1e-3):
    """The fewest restarts that are enough, except with this risk, if so many failures are expected within the window (Poisson)."""
    term = total = math.exp(-expected)
    restarts = 0
    while 1 - total > risk:
        restarts += 1
        term *= expected / restarts
        total += term
    return restarts


def measured(competitor, event):
    """Seconds until the next generation's first step, median, as bench/race.py has measured them."""
    race = json.loads((RESULTS / "race.json").read_text())
    runs = [run for run in race["runs"] if (run["competitor"], run["event"]) == (competitor, event)]
    return statistics.median(run["seconds"] for run in runs if run["seconds"] is not None)


def table(rows):
    head, *rest = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rest])


def words(hours):
    return f"{hours:g} h" if hours < 48 else f"{hours / 24:g} days"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64, help="nodes that the job wants [64]")
    parser.add_argument(
        "--every",
        type=lambda text: [float(word) for word in text.split(",")],
        default=[2, 6, 24, 168],
        help="hours between two reclaims of one machine [2,6,24,168]",
    )
    parser.add_argument("--back", type=float, default=10, help="minutes until a reclaimed machine has a successor [10]")
    parser.add_argument("--save", type=float, default=5, help="seconds of training that one save costs [5]")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/elasticity.md")
    options = parser.parse_args()
    if options.nodes < 1 or options.back <= 0 or options.save <= 0 or min(options.every) <= 0:
        parser.error("all numbers must be greater than zero")
    nodes, back = options.nodes, options.back * MINUTE
    ours, planned, stock = measured("fork", "frozen"), measured("fork", "resize"), measured("tuned", "node")
    minima = sorted({nodes, max(1, nodes * 15 // 16), max(1, nodes // 2)}, reverse=True)
    rows = [
        [
            "each machine is reclaimed every",
            *(f"min {least} of {nodes}" for least in minima),
            f"min {minima[-1]}, saved at each notice",
            f"min {minima[-1]}, torchrun's re-form",
            f"min {minima[-1]}, {REQUEUE:.0f} s to start anew",
            f"best save interval, min {minima[-1]}",
        ]
    ]
    for hours in options.every:
        up = hours * HOUR
        shares = [best(nodes, least, up, back, ours, options.save) for least in minima]
        others = [best(nodes, minima[-1], up, back, reform, options.save)[0] for reform in (stock, REQUEUE)]
        told = announced(nodes, minima[-1], up, back, planned, options.save)
        rows.append([words(hours), *(f"{share:.0%}" for share in [*(share for share, _ in shares), told, *others]), f"{-shares[-1][1]} s"])
    machines = (
        f"{table(rows)}\n\nUseful work, as a share of {nodes} nodes that never fail and never save. A successor comes after {options.back:g} min, "
        f"a save costs {options.save:g} s, a loss {ours:.2g} s, an announced change {planned:.2g} s, a loss under torchrun {stock:.2g} s (bench/race.py).\n"
    )
    expected = [0.1, 0.5, 1, 2, 5, 10]
    failures = ["failures of the job itself that are expected within the window", *(f"{number:g}" for number in expected)]
    budgets = table([failures, ["restarts that are enough 999 times in 1,000", *(str(budget(number)) for number in expected)]]) + "\n"
    print(f"{machines}\n{budgets}", end="")
    if options.write:
        report.rewrite_block("<!-- sizing:begin -->", "<!-- sizing:end -->", machines, PAGE)
        report.rewrite_block("<!-- budget:begin -->", "<!-- budget:end -->", budgets, PAGE)


if __name__ == "__main__":
    main()
