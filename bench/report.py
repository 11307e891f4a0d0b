"""Turns the figures of a race into its tables and the plot. Measures nothing."""

import html
import pathlib
import random
import statistics

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
MEASURED = ROOT / "bench" / "results" / "README.md"
# The page that quotes rows of these tables, each below a line with the name of the table.
QUOTING = ROOT / "docs" / "measured.md"
MAIN = "bench"
BEGIN, END = f"<!-- {MAIN}:begin -->", f"<!-- {MAIN}:end -->"
PLOT_LINE = "\n![The same as bars, with the phases of each](race.svg)\n"
# Muster's lanes, the fastest first. The ratios refer to the first one that took part.
OURS = ("fork", "auto", "pods", "tls", "pool", "direct", "parked", "exec", "cold")
# The event of a bare start. The floors have no other event.
FLOOR = "floor"
FLOORS = ("static", "forks")
NEVER = float("inf")


class Cell:
    """The samples of one event and one competitor: as many as there are rounds, namely those that others disturbed least.

    A "never" counts as longer than anything else.
    """

    def __init__(self, race, event, competitor):
        runs = [run for run in race["runs"] if run["competitor"] == competitor]
        if competitor in FLOORS:
            runs = [run for run in runs if run["nodes"] == race["meta"]["events"][event][1]]
        else:
            runs = [run for run in runs if run["event"] == event]
        self.runs = sorted(runs, key=lambda run: run["others"])[: race["meta"]["rounds"]]
        self.times = sorted(NEVER if run["seconds"] is None else run["seconds"] for run in self.runs)
        self.formed = [seconds for seconds in self.times if seconds != NEVER]
        self.nevers = len(self.times) - len(self.formed)

    def median(self):
        """Infinite if most never re-formed. Of two middle samples it is the mean, so with half a "never" it is "never"."""
        return statistics.median(self.times) if self.times else None

    def watched(self):
        return min(run["watched"] for run in self.runs if run["seconds"] is None)

    def shares(self):
        """Each phase's median share of the whole, over the runs that re-formed."""
        parts = self.parts()
        sums = {name: statistics.median(part[name] / sum(part.values()) for part in parts) for name in parts[0]}
        whole = sum(sums.values())
        return {name: share / whole for name, share in sums.items()}

    def parts(self):
        """The phases of the runs that re-formed. A run is left out if Muster could not be asked for its own account."""
        parts = [run["phases"] for run in self.runs if run["phases"]]
        most = max((len(part) for part in parts), default=0)
        return [part for part in parts if len(part) == most]

    def text(self):
        if not self.times:
            return "-"
        spread = "–".join(sorted({seconds(self.formed[end]) for end in (0, -1)}, key=float)) if self.formed else ""
        if not self.nevers:
            return f"{seconds(self.median())} ({spread})"
        never = f"never, {self.nevers} of {len(self.times)} (watched {self.watched():.0f} s)"
        return f"{never}; else {spread}" if self.formed else never

    def ratio(self, ours):
        if not self.times or not ours.times or ours.median() == NEVER:
            return ""
        if self.median() == NEVER:
            return f", > {self.watched() / ours.median():.0f}×" if self.watched() > ours.median() else ""
        ratio = self.median() / ours.median()
        return f", {ratio:.0f}×" if ratio >= 10 else f", {ratio:.2g}×"


def seconds(value):
    """Two digits of a fraction of a second, tenths of a longer time."""
    return f"{value:.1f}" if round(value, 2) >= 1 else f"{value:.2f}"


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


# A planned change costs the time for which training stops, and not the time for which it waits.
PLANNED = ("join", "resize")


def split_start(entry):
    """Muster's own account of the time before the first worker starts: detect, decide, stop. The rest of that time is the launch.

    A planned change is counted from the moment when all are ready for it. The time before, in which training went on, is "prepare". A silence
    is counted from the moment when the node was last heard, which is before the event. The part before the event is not part of "detect".
    """
    receipts = [receipt for receipt in entry.get("receipts") or [] if receipt.get("decideMs") is not None]
    if not entry["phases"] or not receipts:
        return
    if "to start" not in entry["phases"]:
        entry["phases"]["to start"] = sum(entry["phases"].pop(name, 0) for name in PHASES[: PHASES.index("launch") + 1])
    left, parts = entry["phases"].pop("to start"), {"prepare": 0}
    if entry["event"] in PLANNED and receipts[-1].get("totalMs") is not None:
        # Muster's account ends when all have joined.
        told = receipts[-1]["totalMs"] / 1000 - entry["phases"]["import"] - entry["phases"]["join"]
        parts["prepare"] = round(min(left, max(0, left - told)), 3)
        left -= parts["prepare"]
    told = {name: (receipts[-1].get(f"{name}Ms") or 0) / 1000 for name in ("detect", "decide", "stop", "launch")}
    told["detect"] = max(0, min(told["detect"], left - told["decide"] - told["stop"] - told["launch"]))
    for name in ("detect", "decide", "stop"):
        parts[name] = round(min(left, told[name]), 3)
        left -= parts[name]
    entry["phases"] = {**parts, "launch": round(left, 3), **entry["phases"]}


PHASES = ("prepare", "detect", "decide", "stop", "launch", "import", "join", "first step")


def phase_table(race):
    """Where the time goes: medians of each phase, each ending with the last member."""
    rows = [["milliseconds, medians", "", *PHASES], ["---"] * (2 + len(PHASES))]
    for event, (title, _) in race["meta"]["events"].items():
        for key in (key for key in OURS if key in race["meta"]["competitors"]):
            parts = Cell(race, event, key).parts()
            if parts and "detect" in parts[0]:
                middle = [f"{statistics.median(part[name] for part in parts) * 1000:.0f}" for name in PHASES]
                rows.append([title, race["meta"]["competitors"][key], *middle])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n" if len(rows) > 2 else ""


def pauses(race):
    """How long training stopped for a planned change: from the last step before it to the first step after it on every member."""
    said = []
    for event, (title, _) in race["meta"]["events"].items():
        stood = {}
        for key, name in race["meta"]["competitors"].items():
            found = [run["stood_still"] for run in Cell(race, event, key).runs if run.get("stood_still") is not None]
            if event in PLANNED and found:
                stood[name] = f"{name} {statistics.median(found):.2f} ({min(found):.2f}–{max(found):.2f})"
        if stood:
            said.append(f"{title}: {', '.join(stood.values())}")
    return f"Without a step for a planned change, seconds, median (min–max): {'; '.join(said)}.\n" if said else ""


# The most that pods may add to a re-form, in milliseconds.
PODS_TARGET = 20


def pods(race):
    """What pods add to a re-form, beside the same on the machine itself."""
    said = []
    for event, (title, _) in race["meta"]["events"].items():
        inside, beside = (Cell(race, event, key) for key in ("pods", "fork"))
        if event == "start" or inside.nevers or beside.nevers or min(len(inside.times), len(beside.times)) < 2:
            continue
        (more, low, high), (a, b) = difference(inside.times, beside.times), (quartiles(cell.times) for cell in (inside, beside))
        said.append(f"{title}: {a} in pods, {b} beside them, {signed(more)} ms (95 %: {signed(low)} to {signed(high)})")
    if not said:
        return ""
    return (
        "A pod is two containers, the agent in one and the workers in the other. They have PID and mount namespaces of their own, one shared folder, and cannot\n"
        "make cgroups. They are made by `unshare`; network, files and limits are the machine's, so what a container engine adds to these is not in it. "
        "The agents have\nthe flags of `muster local`. The worker is killed from outside. "
        f"Milliseconds, median (quartiles), and the difference of the medians; the target is {signed(PODS_TARGET)} at most.\n"
        f"{'; '.join(said)}.\n"
    )


def signed(milliseconds):
    return f"{milliseconds:+.0f}".replace("-", "−")


def quartiles(times):
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return f"{middle * 1000:.0f} ({low * 1000:.0f}–{high * 1000:.0f})"


def difference(ones, others, draws=10_000):
    """The difference of two medians in milliseconds, and between what it lies in 95 % of all draws from these samples (the bootstrap)."""
    draw = random.Random(1)
    drawn = lambda times: statistics.median(draw.choices(times, k=len(times)))  # noqa: E731
    found = sorted(drawn(ones) - drawn(others) for _ in range(draws))
    ends = statistics.median(ones) - statistics.median(others), found[draws * 25 // 1000], found[draws * 975 // 1000]
    return tuple(1000 * seconds for seconds in ends)


def memory_table(race):
    """The table of the cold lane, if it took part. The other lanes also have launchers, whose memory is torch's and not Muster's."""
    lanes = [key for key in reversed(OURS) if any(entry["competitor"] == key for entry in race["memory"])]
    lines, counted = [], [entry for entry in race["memory"] if entry["competitor"] == lanes[0]]
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
    counted = counted or [0.0]
    idle = f"Beside the race {meta['idle']:,} processes did nothing.\n" if meta.get("idle") else ""
    absent = "".join(f"{stack} did not take part: {why}.\n" for stack, why in meta.get("absent", {}).items())
    words = (
        f"Measured by `{meta['command']}` on {meta['date']}, {meta.get('muster', 'without Muster')}: {meta['machine']}; torch {meta['torch']}, "
        f"Python {meta['python']}, gloo.\n"
        f"{meta['nodes']} nodes of one process each, at most {meta['rounds']} interleaved rounds. Other programs took "
        f"{statistics.median(counted):.0%} of the processors meanwhile (median; {max(counted):.0%} at most).\n"
    )
    return f"{table(race)}\n{words}{idle}{absent}{pods(race)}{pauses(race)}{memory_table(race)}{PLOT_LINE}"


# The part of the table that the README shows: these events, for the lane of `launch: auto`, for stock torchrun, and for its best settings.
FEW_EVENTS = ("worker", "node", "rank0", "frozen", "resize")
FEW = ("fork", "tuned", "stock")


def few(race):
    """The README's table: medians only."""
    meta = race["meta"]
    keys = [key for key in FEW if key in meta["competitors"]]
    head = ["seconds, median", *(meta["competitors"][key] for key in keys)]
    rows = [head, ["---"] * len(head)]
    for event in (event for event in FEW_EVENTS if event in meta["events"]):
        cells = [Cell(race, event, key) for key in keys]
        texts = ["-" if not cell.times else "never" if cell.median() == NEVER else seconds(cell.median()) for cell in cells]
        rows.append([meta["events"][event][0], f"**{texts[0]}**", *texts[1:]])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def publish(race, name):
    """Writes the whole table where all that is measured stands. The race of `make bench` also gives a few figures to the README."""
    begin, end = (mark.replace("bench:", f"{name}:") for mark in (BEGIN, END))
    text = block(race)
    if begin == BEGIN:
        rewrite_block(*(mark.replace("bench:", "figures:") for mark in (BEGIN, END)), few(race), README)
    else:
        text = text.replace(PLOT_LINE, "")
    rewrite_block(begin, end, text)


def rewrite_block(begin, end, text, page=MEASURED, quoting=QUOTING):
    """Writes the text between the two lines of the page that mark its place, and the rows of it that are quoted."""
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise SystemExit(f"{page.relative_to(ROOT)} must have the lines {begin} and {end} once each")
    before, rest = whole.split(begin)
    after = rest.split(end)[1]
    page.write_text(f"{before}{begin}\n{text}{end}{after}")
    if page == MEASURED:
        quoting.write_text(requoted(quoting.read_text(), begin.split()[1].removesuffix(":begin"), text))


def requoted(page, name, text):
    """The quoting page, with this table's rows as they are now. A row is known by its first cell."""
    table = [line for line in text.splitlines() if line.startswith("|")]
    first = lambda line: line.split("|")[1].strip()  # noqa: E731
    rows = {first(line): line for line in table[2:]}
    pieces = page.split(f"<!-- quoted {name} -->\n")
    for at, piece in enumerate(pieces[1:], 1):
        quoted, after = piece.split("<!-- end -->", 1)
        wanted = [first(line) for line in quoted.splitlines()[2:]]
        if gone := [cell for cell in wanted if cell not in rows]:
            raise SystemExit(f"docs/measured.md quotes rows that the table {name} does not have: {', '.join(gone)}")
        pieces[at] = "\n".join([*table[:2], *(rows[cell] for cell in wanted)]) + f"\n<!-- end -->{after}"
    return f"<!-- quoted {name} -->\n".join(pieces)


# Darkest and lightest shade of each competitor's bar.
SHADES = {
    "fork": ("#1b5e20", "#cdebcf"),
    "pods": ("#2e5d4b", "#d0e6dc"),
    "pool": ("#4e6b00", "#e3efb8"),
    "tls": ("#006064", "#c8ecee"),
    "direct": ("#33691e", "#e1edbf"),
    "parked": ("#0b5d5d", "#bfe6e6"),
    "exec": ("#3e4a89", "#d3d8f0"),
    "auto": ("#1b5e20", "#cdebcf"),
    "cold": ("#0b3d91", "#c4daf8"),
    "tuned": ("#7a4a00", "#f1d9ac"),
    "stock": ("#8c1c13", "#f4cfcc"),
    "etcd": ("#5b2a86", "#e2d0f2"),
    "static": ("#4d4d4d", "#d9d9d9"),
    "forks": ("#4d4d4d", "#d9d9d9"),
}


def shades(key, count):
    """This many shades, from dark to light."""
    ends = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in SHADES[key]]
    mix = lambda share: "".join(f"{round(dark + (light - dark) * share):02x}" for dark, light in zip(*ends))  # noqa: E731
    return ["#" + mix(number / max(1, count - 1)) for number in range(count)]


WIDTH, LEFT, RIGHT, BAR, GAP = 960, 210, 140, 15, 16


def plot(race):
    """Bars of the medians, shaded by phase, with whiskers from the quickest to the slowest. A "never" is a hatched bar to the end."""
    meta = race["meta"]
    cells = {(event, key): Cell(race, event, key) for event in meta["events"] for key in meta["competitors"]}
    longest = max([seconds for cell in cells.values() for seconds in cell.formed] + [meta["watch"] / 4])
    longest *= 1.05
    x = lambda seconds: LEFT + (WIDTH - LEFT - RIGHT) * min(seconds, longest) / longest  # noqa: E731
    parts, y = [], 84
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
        grid.append(f'<line x1="{x(tick):.1f}" y1="76" x2="{x(tick):.1f}" y2="{y - 8}" stroke="#ddd"/>')
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
    median = cell.median()
    parts, middle = [], y + BAR / 2
    if median == NEVER:
        parts.append(
            f'<rect x="{x(0)}" y="{y}" width="{x(longest) - x(0):.1f}" height="{BAR}" fill="url(#never)" stroke="{SHADES[key][0]}"/>'
        )
        label = f"never, {cell.nevers} of {len(cell.times)} ({cell.watched():.0f} s)"
        return [*parts, f'<text x="{x(longest) + 6:.1f}" y="{y + 12}">{label}</text>']
    at, shares = 0, cell.shares()
    for shade, (name, share) in zip(shades(key, len(shares)), shares.items()):
        width = x(at + share * median) - x(at)
        parts.append(f'<rect x="{x(at):.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{shade}"><title>{name}</title></rect>')
        at += share * median
    low, high = cell.formed[0], cell.formed[-1]
    parts.append(f'<line x1="{x(low):.1f}" y1="{middle}" x2="{x(high):.1f}" y2="{middle}" stroke="#000"/>')
    for end in (low, high):
        parts.append(f'<line x1="{x(end):.1f}" y1="{y + 4}" x2="{x(end):.1f}" y2="{y + BAR - 4}" stroke="#000"/>')
    label = seconds(median) + (f" (never {cell.nevers} of {len(cell.times)})" if cell.nevers else "")
    parts.append(f'<text x="{x(max(high, median)) + 6:.1f}" y="{y + 12}">{label}</text>')
    return parts


def legend(meta):
    parts, at, line = [], 12, 32
    for key, title in meta["competitors"].items():
        width = 32 + 6.3 * len(title)
        if at + width > WIDTH:
            at, line = 12, line + 16
        parts.append(f'<rect x="{at:.0f}" y="{line}" width="11" height="11" fill="{shades(key, 4)[1]}"/>')
        parts.append(f'<text x="{at + 16:.0f}" y="{line + 10}">{html.escape(title)}</text>')
        at += width
    phases = "dark to light: until workers start (Muster: prepare, detect, decide, stop, launch), import, join, first step"
    parts.append(f'<text x="{WIDTH - 12}" y="20" text-anchor="end" class="s">{phases}</text>')
    return parts
