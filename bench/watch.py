"""Reads what the ranks of `step.py` write, and finds the worlds that were formed, by the ranks' own clock.

A world is all ranks that saw the same token. It is complete when each of its ranks has made its first all-reduce. It counts when all of
them have made a few more: a world that falls apart at once has not re-formed anything.
"""

import dataclasses
import pathlib
import time

import processes

STEPS_TO_COUNT = 5
# This sets only how soon we notice. All times come from the ranks' files.
LOOK = 0.02


@dataclasses.dataclass
class Member:
    # That of its file: PID, or PID-NAMESPACE.
    name: str
    world: int = 0
    rank: int = -1
    token: int = 0
    steps: int = 0
    started: int = 0
    imported: int = 0
    joined: int = 0
    first: int = 0
    last: int = 0

    @property
    def pid(self):
        """Its pid outside of all containers. To find it takes milliseconds, so ask before a measurement begins."""
        pid, _, namespace = self.name.partition("-")
        return processes.outside(int(pid), int(namespace)) if namespace else int(pid)


class World:
    def __init__(self, members):
        self.members = sorted(members, key=lambda member: member.rank)
        self.size = self.members[0].world
        self.token = self.members[0].token

    def is_complete(self):
        return [member.rank for member in self.members] == list(range(self.size))

    def counts(self):
        return self.is_complete() and all(member.steps >= STEPS_TO_COUNT for member in self.members)

    def first(self):
        """When the last member completed its first all-reduce."""
        return max(member.first for member in self.members)

    def phases(self, since):
        """Seconds from `since` until all members had started, imported, joined, stepped: each phase ends with its last member."""
        ends = [max(getattr(member, phase) for member in self.members) for phase in ("started", "imported", "joined", "first")]
        begins = [since, *ends[:-1]]
        return {name: (end - begin) / 1e9 for name, begin, end in zip(("to start", "import", "join", "first step"), begins, ends)}


class Watch:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.members = {}
        self.read_to = {}

    def look(self):
        for path in self.folder.glob("*.steps"):
            with open(path) as file:
                file.seek(self.read_to.get(path, 0))
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self.read_to[path] = self.read_to.get(path, 0) + len(whole)
            member = self.members.setdefault(path.stem, Member(path.stem))
            for line in whole.splitlines():
                self.take(member, line.split())

    @staticmethod
    def take(member, words):
        at = int(words[0])
        if len(words) == 2:
            setattr(member, words[1], at)
            return
        _, member.world, member.rank, member.token = map(int, words[1:])
        member.steps += 1
        member.first = member.first or at
        member.last = at

    def worlds(self, since=0):
        """Worlds whose processes all started after `since`, oldest first."""
        by_token = {}
        for member in self.members.values():
            if member.steps:
                by_token.setdefault(member.token, []).append(member)
        worlds = [World(members) for members in by_token.values() if all(member.started > since for member in members)]
        return sorted(worlds, key=World.first)

    def stood_still(self, world):
        """Seconds without a step before this world's first step on every member. None if no rank had stepped before it."""
        new = {member.name for member in world.members}
        before = [member.last for member in self.members.values() if member.name not in new and 0 < member.last < world.first()]
        return (world.first() - max(before)) / 1e9 if before else None

    def wait(self, size, since, until, gave_up=lambda: False, meanwhile=lambda: None):
        """The first world of that size that counts. None if there is none by `until` (time.monotonic), or if no process is left to try."""
        while True:
            meanwhile()
            over = gave_up()
            self.look()
            for world in self.worlds(since):
                if world.size == size and world.counts():
                    return world
            if over or time.monotonic() > until:
                return None
            time.sleep(LOOK)
