"""Turns the figures of a race into the table, the README's block and the plot. Measures nothing."""

import html
import pathlib
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
# Ours, the fastest first: the first one that took part is what the ratios refer to.
OURS = ("fork", "parked", "muster")
NEVER = float("inf")


class Cell:
    """The samples of one event and one competitor: of all that were made, as many as rounds, the least disturbed by others.

    A "never" counts as longer than anything else.
    """

    def __init__(self, race, event, competitor):
        runs = [run for run in race["runs"] if run["competitor"] == competitor and run["event"] == event]
        self.runs = sorted(runs, key=lambda run: run["others"])[: race["meta"]["rounds"]]
        self.times = sorted(NEVER if run["seconds"] is None else run["seconds"] for run in self.runs)
        self.formed = [seconds for seconds in self.times if seconds != NEVER]
        self.nevers = len(self.times) - len(self.formed)

    def median(self):
        """Infinite if most never re-formed; of two middle ones the mean, so half of never is never."""
        return statistics.median(self.times) if self.times else None

    def watched(self):
        return min(run["watched"] for run in self.runs if run["seconds"] is None)

    def shares(self):
        """Each phase's median share of the whole, over the runs that re-formed."""
        parts = [run["phases"] for run in self.runs if run["phases"]]
        sums = {name: statistics.median(part[name] / sum(part.values()) for part in parts) for name in parts[0]}
        whole = sum(sums.values())
        return {name: share / whole for name, share in sums.items()}

    def text(self):
        if not self.times:
            return "-"
        spread = "–".join(sorted({f"{self.formed[end]:.1f}" for end in (0, -1)}, key=float)) if self.formed else ""
        if not self.nevers:
            return f"{self.median():.1f} ({spread})"
        never = f"never, {self.nevers} of {len(self.times)} (watched {self.watched():.0f} s)"
        return f"{never}; else {spread}" if self.formed else never

    def ratio(self, ours):
        if not self.times or not ours.times or ours.median() == NEVER:
            return ""
        if self.median() == NEVER:
            return f", > {self.watched() / ours.median():.0f}×" if self.watched() > ours.median() else ""
        ratio = self.median() / ours.median()
        return f", {ratio:.0f}×" if ratio >= 10 else f", {ratio:.2g}×"


def table(race):
    meta = race["meta"]
    base = next((key for key in OURS if key in meta["competitors"]), None)
    ratio = f", ratio to {meta['competitors'][base]}" if base else ""
    head = [f"seconds: median (min–max){ratio}", *meta["competitors"].values()]
    rows = []
    for event, (title, nodes) in meta["events"].items():
        cells = {key: Cell(race, event, key) for key in meta["competitors"]}
        texts = []
        for key, cell in cells.items():
            text = cell.text()
            if base and key != base:
                text += cell.ratio(cells[base])
            if key in OURS:
                text = f"**{text}**"
            texts.append(text)
        rows.append([f"{title} → {nodes} nodes", *texts])
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def memory_table(race):
    """Of the cold lane: the others hold spare launchers, too, which are torch and not ours."""
    lines, counted = [], [entry for entry in race["memory"] if entry.get("competitor", "muster") == "muster"]
    for program in sorted({entry["program"] for entry in counted}):
        found = [entry for entry in counted if entry["program"] == program]
        pss = [entry["pss_kib"] / 1024 for entry in found]
        rss = [entry["rss_kib"] / 1024 for entry in found]
        lines.append(f"{program} {statistics.median(rss):.1f} MiB (Pss {statistics.median(pss):.1f})")
    if not lines:
        return ""
    return "Resident memory beside a world that trains, median: " + ", ".join(lines) + ".\n"


def block(race):
    meta = race["meta"]
    counted = [run["others"] for event in meta["events"] for key in meta["competitors"] for run in Cell(race, event, key).runs]
    words = (
        f"Measured by `{meta['command']}` on {meta['date']}, {meta.get('muster', 'without Muster')}: {meta['machine']}; torch {meta['torch']}, "
        f"Python {meta['python']}, gloo.\n"
        f"{meta['nodes']} nodes of one process each on this one machine, {meta['rounds']} interleaved rounds. Time from the event "
        "until the last member of the new world has\n"
        "completed its first all-reduce, finding out included; a first start begins with the command, Muster's daemons stand by then. "
        "Stock torchrun has its\n"
        "rendezvous store in a process of its own, which nothing touches, and restarts without end. The floor is a bare static launch "
        "of as many nodes,\n"
        "with nothing to find out or to stop. In the lanes parked and fork every node had its spare launcher before the event. All "
        "else imports torch\n"
        f"on the same {meta['machine'].split()[0]} cores, so orders of magnitude carry over and seconds do not. Other\n"
        f"programs of the machine took {statistics.median(counted):.0%} of the processors meanwhile (median; {max(counted):.0%} at "
        "most).\n"
    )
    plot_line = "\n![The same as bars, with the phases of each](bench/results/race.svg)\n"
    return f"{table(race)}\n{words}{memory_table(race)}{plot_line}"


def rewrite_readme(race):
    text = README.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"README.md must have the lines {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}\n{block(race)}{END}{after}")


SHADES = {
    "muster": ("#0b3d91", "#2f6fd0", "#7aa7ec", "#c4daf8"),
    "parked": ("#0b5d5d", "#188f8f", "#63c2c2", "#bfe6e6"),
    "fork": ("#1b5e20", "#3c9a43", "#86cb8b", "#cdebcf"),
    "tuned": ("#7a4a00", "#b87710", "#dda84a", "#f1d9ac"),
    "stock": ("#8c1c13", "#c4453b", "#e08d86", "#f4cfcc"),
    "static": ("#4d4d4d", "#808080", "#adadad", "#d9d9d9"),
}
WIDTH, LEFT, RIGHT, BAR, GAP = 960, 210, 140, 15, 16


def plot(race):
    """Bars of the medians, shaded by phase, with whiskers from the quickest to the slowest; a never is a hatched bar to the end."""
    meta = race["meta"]
    cells = {(event, key): Cell(race, event, key) for event in meta["events"] for key in meta["competitors"]}
    longest = max([seconds for cell in cells.values() for seconds in cell.formed] + [meta["watch"] / 4])
    longest *= 1.05
    x = lambda seconds: LEFT + (WIDTH - LEFT - RIGHT) * min(seconds, longest) / longest  # noqa: E731
    parts, y = [], 66
    for event, (title, nodes) in meta["events"].items():
        top = y
        for key in meta["competitors"]:
            cell = cells[event, key]
            if cell.times:
                parts += bar(cell, key, y, x, longest)
                y += BAR + 3
        parts.append(f'<text x="{LEFT - 10}" y="{(top + y) / 2 - 1:.0f}" text-anchor="end">{html.escape(title)}</text>')
        parts.append(f'<text x="{LEFT - 10}" y="{(top + y) / 2 + 12:.0f}" text-anchor="end" class="s">→ {nodes} nodes</text>')
        y += GAP
    step = next(step for step in (1, 2, 5, 10, 20) if longest / step <= 10)
    grid = []
    for tick in range(0, int(longest) + 1, step):
        grid.append(f'<line x1="{x(tick):.1f}" y1="58" x2="{x(tick):.1f}" y2="{y - 8}" stroke="#ddd"/>')
        grid.append(f'<text x="{x(tick):.1f}" y="{y + 6}" text-anchor="middle" class="s">{tick} s</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 16}" font-family="sans-serif" font-size="12">',
            "<style>.s{font-size:10px;fill:#555}</style>",
            '<defs><pattern id="never" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            '<rect width="7" height="7" fill="#fff"/><rect width="3" height="7" fill="#c9c9c9"/></pattern></defs>',
            f'<rect width="{WIDTH}" height="{y + 16}" fill="#fff"/>',
            '<text x="12" y="20" font-size="15">From the event to the first step of the new world on every member</text>',
            *legend(meta),
            *grid,
            *parts,
            "</svg>\n",
        ]
    )


def bar(cell, key, y, x, longest):
    shades, median = SHADES[key], cell.median()
    parts, middle = [], y + BAR / 2
    if median == NEVER:
        parts.append(
            f'<rect x="{x(0)}" y="{y}" width="{x(longest) - x(0):.1f}" height="{BAR}" fill="url(#never)" stroke="{shades[1]}"/>'
        )
        label = f"never, {cell.nevers} of {len(cell.times)} ({cell.watched():.0f} s)"
        return [*parts, f'<text x="{x(longest) + 6:.1f}" y="{y + 12}">{label}</text>']
    at = 0
    for shade, (name, share) in zip(shades, cell.shares().items()):
        width = x(at + share * median) - x(at)
        parts.append(f'<rect x="{x(at):.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{shade}"><title>{name}</title></rect>')
        at += share * median
    low, high = cell.formed[0], cell.formed[-1]
    parts.append(f'<line x1="{x(low):.1f}" y1="{middle}" x2="{x(high):.1f}" y2="{middle}" stroke="#000"/>')
    for end in (low, high):
        parts.append(f'<line x1="{x(end):.1f}" y1="{y + 4}" x2="{x(end):.1f}" y2="{y + BAR - 4}" stroke="#000"/>')
    label = f"{median:.1f}" + (f" (never {cell.nevers} of {len(cell.times)})" if cell.nevers else "")
    parts.append(f'<text x="{x(max(high, median)) + 6:.1f}" y="{y + 12}">{label}</text>')
    return parts


def legend(meta):
    parts, at = [], 12
    for key, title in meta["competitors"].items():
        parts.append(f'<rect x="{at}" y="32" width="11" height="11" fill="{SHADES[key][1]}"/>')
        parts.append(f'<text x="{at + 16}" y="42">{html.escape(title)}</text>')
        at += 32 + 6 * len(title)
    shades = "dark to light: until workers start, import, join, first step"
    parts.append(f'<text x="{WIDTH - 12}" y="20" text-anchor="end" class="s">{shades}</text>')
    return parts
