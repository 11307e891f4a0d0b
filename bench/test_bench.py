"""The parts of the race that decide what is counted: python -m unittest discover bench"""

import contextlib
import io
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

import containers
import goodput
import gpu
import plan
import processes
import race as race_bench
import report
import scale
import senses
import sizing
import stacks
import watch


def write(folder, pid, lines, end="\n"):
    with open(pathlib.Path(folder, f"{pid}.steps"), "a") as file:
        file.write("\n".join(lines) + end)


def rank(folder, pid, number, world, token, began, steps=watch.STEPS_TO_COUNT):
    phases = [f"{began + at} {name}" for at, name in enumerate(("started", "imported", "joined"))]
    write(folder, pid, phases + [f"{began + 10 * step + number} {step} {world} {number} {token}" for step in range(1, steps + 1)])


class Gpu(unittest.TestCase):
    def test_each_script_runs_in_each_lane_beside_torchrun_and_standbys_are_of_lane_fork(self):
        cells = list(gpu.cells(["small", "gpt"], ["fork", "cold"], ["off", "parked"]))
        of_one = [("fork", "off"), ("fork", "parked"), ("cold", "off"), (gpu.TORCHRUN, "off")]
        self.assertEqual(cells, [(program, *rest) for program in ("small", "gpt") for rest in of_one])
        self.assertEqual(gpu.title(*cells[1]), "small: Muster, fork, standbys parked")
        self.assertEqual(gpu.title(*cells[3]), "small: torchrun, best tuning")
        default = list(gpu.cells(["small"], ["auto"], ["off", "open"]))
        self.assertEqual([cell[1:] for cell in default], [("auto", "auto"), (gpu.TORCHRUN, "off")])
        self.assertEqual(gpu.title(*default[0]), "small: Muster, as a job that says nothing")

    def test_a_kill_waits_for_a_standby_or_says_why_there_is_none(self):
        lane = "Lane:  fork: its launcher was ready; "
        self.assertTrue(gpu.stands_by(lane + "standbys: 1 of 1 parked", "parked"))
        self.assertTrue(gpu.stands_by(lane + "standbys: 1 of 1 parked", "auto"))
        self.assertFalse(gpu.stands_by(lane + "standbys: 0 of 1 parked", "parked"))
        self.assertFalse(gpu.stands_by(lane + "standbys: parked ones are being made", "parked"))
        with self.assertRaisesRegex(gpu.Wrong, "GPU-0 has 12 MiB free"):
            gpu.stands_by(lane + "no standbys: GPU-0 has 12 MiB free", "parked")

    def test_a_script_goes_on_from_its_checkpoint(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            environment = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            steps = []
            for start in range(2):
                command = [sys.executable, str(gpu.stacks.HERE / "gpu_gpt.py"), str(folder), "tiny"]
                with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as ran:
                    steps.append([int(re.match(r"step=(\d+) ", ran.stdout.readline())[1]) for _ in range(2)])
                    ran.kill()
                self.assertTrue((folder / f"step.{start}.json").exists())
            self.assertEqual(steps, [[1, 2], [2, 3]])


class Goodput(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.steps = goodput.Steps(self.folder)

    def test_a_step_counts_once(self):
        write(self.folder, 11, [f"{at} {step} 1 0" for at, step in enumerate((1, 2, 3))])
        self.steps.look()
        write(self.folder, 12, [f"{at} {step} 1 0" for at, step in enumerate((2, 3, 4))])
        self.steps.look()
        self.assertEqual(self.steps.furthest, 4)

    def test_who_is_gone_or_stands_still_does_not_train(self):
        now, mine = time.monotonic_ns(), os.getpid()
        write(self.folder, mine, [f"{now} 7 2 0"])
        gone = subprocess.Popen(["true"])
        gone.wait()
        write(self.folder, gone.pid, [f"{now} 7 2 1"])
        self.assertEqual(self.steps.training(), {0: mine})
        self.assertEqual(self.steps.world(), 0)
        write(self.folder, mine, [f"{now} 8 1 0"])
        self.assertEqual(self.steps.world(), 1)
        write(self.folder, mine, [f"{now - int(2e9 * goodput.FRESH)} 9 1 0"])
        self.assertEqual(self.steps.world(), 0)

    def test_a_share_is_of_the_same_competitor_and_round(self):
        run = lambda key, failure, number, rate: {"competitor": key, "failure": failure, "period": failure and 10, "round": number, "rate": rate}  # noqa: E731
        runs = [run("fork", None, 1, 20.0), run("fork", "worker", 1, 18.0), run("fork", None, 2, 10.0), run("fork", "worker", 2, 8.0)]
        runs += [run("tuned", None, 1, 19.0), run("tuned", "worker", 1, None)]
        found = {"runs": runs}
        self.assertEqual(goodput.shares(found, "fork", "worker", 10), [0.9, 0.8])
        self.assertEqual(goodput.shares(found, "tuned", "worker", 10), [])
        self.assertEqual(goodput.spread([0.9, 0.8]), "85% (80%–90%)")

    def test_a_failure_costs_what_is_missing_of_undisturbed_steps(self):
        run = lambda failure, steps, failures: {  # noqa: E731
            **{"competitor": "fork", "failure": failure, "period": failure and 10, "round": 1},
            **{"seconds": 60.0, "steps": steps, "rate": steps / 60, "failures": failures},
        }
        found = {"runs": [run(None, 1200, 0), run("worker", 1100, 5)]}
        self.assertEqual(goodput.costs(found, "fork", "worker", 10), [1.0])
        self.assertEqual(goodput.costs({"runs": [run(None, 1200, 0), run("worker", 1200, 0)]}, "fork", "worker", 10), [])


class Sizing(unittest.TestCase):
    def test_the_model_agrees_with_machines_that_are_drawn(self):
        nodes, least, up, back, reform, save, interval = 6, 4, 4000.0, 600.0, 2.0, 3.0, 60.0
        draw, now, work = random.Random(1), 0.0, 0.0
        is_up = [True] * nodes
        while now < 4e7:
            k = sum(is_up)
            rate = k / up + (nodes - k) / back
            lasts = draw.expovariate(rate)
            if k >= least:
                work += k / nodes * max(0.0, lasts * (1 - save / interval) - reform - interval / 2)
            now += lasts
            which = draw.random() * rate
            goes = which < k / up
            chosen = draw.choice([at for at in range(nodes) if is_up[at] == goes])
            is_up[chosen] = not is_up[chosen]
        self.assertAlmostEqual(work / now, sizing.useful(nodes, least, up, back, reform, save, interval), delta=0.01)

    def test_a_budget_is_enough_with_its_risk(self):
        draw = random.Random(2)

        def failures(expected):
            count, at = 0, draw.expovariate(1)
            while at < expected:
                count, at = count + 1, at + draw.expovariate(1)
            return count

        for expected in (0.5, 2, 5):
            allowed = sizing.budget(expected, risk=0.05)
            self.assertLessEqual(sum(failures(expected) > allowed for _ in range(20_000)) / 20_000, 0.055)
            self.assertGreater(sum(failures(expected) > allowed - 1 for _ in range(20_000)) / 20_000, 0.05)


class Worlds(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name
        self.watch = watch.Watch(self.folder)

    def found(self, size, since):
        return self.watch.wait(size, since, 0)

    def test_a_world_is_timed_by_its_last_member(self):
        rank(self.folder, 11, 0, 2, 11, began=1000)
        rank(self.folder, 12, 1, 2, 11, began=1500)
        world = self.found(2, 500)
        self.assertEqual(world.first(), 1511)
        phases = world.phases(500)
        self.assertAlmostEqual(sum(phases.values()), (1511 - 500) / 1e9)
        self.assertAlmostEqual(phases["to start"], 1000 / 1e9)

    def test_a_rank_missing_or_of_another_world_does_not_count(self):
        rank(self.folder, 11, 0, 2, 11, began=1000)
        rank(self.folder, 12, 1, 2, 99, began=1000)
        self.assertIsNone(self.found(2, 500))

    def test_a_world_from_before_the_event_or_of_another_size_does_not_count(self):
        rank(self.folder, 11, 0, 1, 11, began=1000)
        self.assertIsNone(self.found(1, 1000))
        self.assertIsNone(self.found(2, 500))
        self.assertIsNotNone(self.found(1, 999))

    def test_a_world_that_falls_apart_at_once_does_not_count(self):
        rank(self.folder, 11, 0, 1, 11, began=1000, steps=watch.STEPS_TO_COUNT - 1)
        self.assertIsNone(self.found(1, 500))

    def test_how_long_nobody_stepped(self):
        rank(self.folder, 11, 0, 1, 11, began=1000, steps=watch.STEPS_TO_COUNT)
        rank(self.folder, 12, 0, 1, 12, began=9000, steps=watch.STEPS_TO_COUNT)
        seen = watch.Watch(self.folder)
        seen.look()
        old, new = seen.worlds()
        self.assertIsNone(seen.stood_still(old))
        self.assertEqual(seen.stood_still(new), (new.first() - old.members[0].last) / 1e9)
        self.assertGreater(seen.stood_still(new), 0)

    def test_ranks_with_one_pid_in_two_namespaces_are_two(self):
        rank(self.folder, "7-100", 0, 2, 99, began=1000)
        rank(self.folder, "7-200", 1, 2, 99, began=1000)
        self.assertEqual([member.name for member in self.found(2, 500).members], ["7-100", "7-200"])

    def test_a_line_half_written_is_read_when_it_is_whole(self):
        rank(self.folder, 11, 0, 1, 11, began=1000, steps=watch.STEPS_TO_COUNT - 1)
        write(self.folder, 11, ["2000 5 1"], end="")
        self.assertIsNone(self.found(1, 500))
        write(self.folder, 11, [" 0 11"])
        self.assertIsNotNone(self.found(1, 500))


def race(**seconds):
    runs = [
        {"event": "node", "nodes": 3, "competitor": key, "seconds": value, "watched": 60.0, "phases": None, "others": 0.0}
        for key, values in seconds.items()
        for value in values
    ]
    meta = {"events": {"node": ["a node cut", 3]}, "competitors": {key: key for key in seconds}, "rounds": 3}
    return {"meta": meta, "runs": runs, "memory": []}


class Table(unittest.TestCase):
    def row(self, **seconds):
        return [cell.strip() for cell in report.table(race(**seconds)).splitlines()[2].strip("|").split("|")][1:]

    def test_median_spread_and_ratio_to_ours(self):
        self.assertEqual(self.row(fork=[2, 4, 3], stock=[6, 9, 5]), ["**3.0 (2.0–4.0)**", "6.0 (5.0–9.0), 2×"])

    def test_a_fraction_of_a_second_has_two_figures(self):
        self.assertEqual(self.row(fork=[0.134, 0.118, 0.996]), ["**0.13 (0.12–1.0)**"])

    def test_never_is_said_and_is_longer_than_anything(self):
        ours, stock = self.row(fork=[3, 3, 3], stock=[None, 7, None])
        self.assertEqual(stock, "never, 2 of 3 (watched 60 s); else 7.0, > 20×")
        self.assertEqual(self.row(fork=[None], stock=[5])[0], "**never, 1 of 1 (watched 60 s)**")


    def test_what_a_planned_change_stops_is_said(self):
        found = race(fork=[1.5, 1.7, 1.6])
        self.assertEqual(report.pauses(found), "", "a cut is not planned")
        found["meta"]["events"] = {"join": ["a node joins", 4]}
        for run, pause in zip(found["runs"], (0.15, 0.25, 0.17)):
            run.update(event="join", stood_still=pause)
        self.assertIn("a node joins: fork 0.17 (0.15–0.25)", report.pauses(found))

    def test_what_pods_add_is_told_with_how_sure_it_is(self):
        self.assertAlmostEqual(report.difference([0.3, 0.31, 0.32], [0.28, 0.29, 0.3], draws=1000)[0], 20)
        more, low, high = report.difference([0.31] * 5, [0.3] * 5, draws=1000)
        self.assertTrue(more == low == high, "nothing varies")
        found = race(fork=[0.28, 0.29, 0.3], pods=[0.31, 0.31, 0.31])
        self.assertIn("a node cut: 310 (310–310) in pods, 290 (285–295) beside them, +20 ms (95 %: +10 to +30)", report.pods(found))
        self.assertEqual(report.pods(race(fork=[0.3, 0.3, 0.3], pods=[0.3, None, 0.3])), "", "a never has no difference")
        self.assertEqual(report.pods(race(fork=[0.3, 0.3, 0.3])), "")

    def test_the_least_disturbed_count(self):
        disturbed = race(fork=[9, 9, 3, 3, 3])
        for run in disturbed["runs"]:
            run["others"] = run["seconds"] / 100
        self.assertEqual(report.Cell(disturbed, "node", "fork").times, [3, 3, 3])


    def test_a_floor_is_of_the_worlds_size_and_not_of_the_event(self):
        found = race(fork=[1], static=[7])
        found["runs"][1]["event"] = report.FLOOR
        self.assertEqual(report.Cell(found, "node", "static").times, [7])
        found["runs"][1]["nodes"] = 4
        self.assertEqual(report.Cell(found, "node", "static").times, [])


class Phases(unittest.TestCase):
    def test_what_a_planned_change_waits_for_is_no_part_of_the_launch(self):
        entry = {"event": "join", "phases": {"to start": 4.3, "import": 0.0, "join": 0.02, "first step": 0.01}}
        entry["receipts"] = [{"detectMs": 0.0, "decideMs": 0.0, "stopMs": 40.0, "totalMs": 130.0}]
        report.split_start(entry)
        self.assertEqual([entry["phases"][name] for name in ("prepare", "stop", "launch")], [4.19, 0.04, 0.07])
        self.assertAlmostEqual(sum(entry["phases"].values()), 4.33)

    def test_a_silence_that_began_before_the_event_takes_nothing_from_the_rest(self):
        entry = {"event": "frozen", "phases": {"to start": 4.6, "import": 0.0, "join": 0.02, "first step": 0.01}}
        entry["receipts"] = [{"detectMs": 5000.0, "decideMs": 50.0, "stopMs": None, "launchMs": 60.0}]
        report.split_start(entry)
        self.assertEqual([entry["phases"][name] for name in ("detect", "decide", "stop", "launch")], [4.49, 0.05, 0, 0.06])

    def test_musters_account_divides_the_time_before_the_start_and_adds_nothing(self):
        entry = {"event": "node", "phases": {"to start": 0.5, "import": 0.0, "join": 0.02, "first step": 0.01}}
        entry["receipts"] = [{"decideMs": 9.0}, {"detectMs": 3.0, "decideMs": 50.0, "stopMs": None}]
        report.split_start(entry)
        self.assertEqual([entry["phases"][name] for name in ("detect", "decide", "stop", "launch")], [0.003, 0.05, 0, 0.447])
        self.assertAlmostEqual(sum(entry["phases"].values()), 0.53)
        again = {**entry, "phases": dict(entry["phases"])}
        report.split_start(again)
        self.assertEqual(again["phases"], entry["phases"], "what was divided is divided the same")
        plain = {"phases": {"to start": 0.5}, "receipts": None}
        report.split_start(plain)
        self.assertEqual(plain["phases"], {"to start": 0.5})


class Plan(unittest.TestCase):
    def test_who_never_came_back_is_not_asked_for_ever(self):
        options = types.SimpleNamespace(planned=False)
        nevers = [{"competitor": "stock", "event": "node", "seconds": None}] * plan.NEVERS
        self.assertTrue(plan.takes_part("stock", "node", 4, options, nevers[1:]))
        self.assertFalse(plan.takes_part("stock", "node", 4, options, nevers))
        self.assertTrue(plan.takes_part("stock", "worker", 4, options, nevers))
        self.assertTrue(plan.takes_part("stock", "node", 4, options, [*nevers, {**nevers[0], "seconds": 40.0}]))

    def test_the_plan_says_who_does_how_much(self):
        options = types.SimpleNamespace(planned=True)
        self.assertTrue(plan.takes_part("fork", "frozen", plan.ROUNDS - 1, options, []))
        self.assertFalse(plan.takes_part("etcd", "frozen", 0, options, []))
        self.assertFalse(plan.takes_part("etcd", "worker", 2, options, []))
        self.assertFalse(plan.takes_part("static", "worker", 0, options, []), "floors are timed apart")
        self.assertEqual(set(plan.SHARE), set(stacks.COMPETITORS) - set(stacks.FLOORS), "nobody is left out without a word")


    def test_who_cannot_take_part_is_told_and_the_others_race(self):
        options = types.SimpleNamespace(competitors=["fork", "pods"])
        found = {"meta": {"competitors": {"fork": "ours", "pods": "in pods"}, "absent": {}}}
        with contextlib.redirect_stderr(io.StringIO()) as said:
            race_bench.leave_out("pods", "no root", options, found)
            self.assertEqual((options.competitors, found["meta"]["absent"]), (["fork"], {"pods": "no root"}))
            self.assertIn("pods does not take part: no root", said.getvalue())
            with self.assertRaisesRegex(SystemExit, "nobody takes part: no root"):
                race_bench.leave_out("fork", "no root", options, found)


class Scale(unittest.TestCase):
    def test_a_page_has_every_figure_and_says_what_failed(self):
        spread = {"p50": 20.4, "p99": 44.6, "samples": 100}
        names = ("decided, stored and handed to all sessions", "all members have their assignment", "all members train")
        rest = {"rss_mib": 463.2, "cores": 0.31}
        whole = {"agents": 10_000, "members": 1_000, "code": None, "idle": rest, "progress": rest, "exit_cpu_ms": 350.0}
        whole["exit"] = {name: spread for name in names}
        whole["restarts"] = [{"all_welcomed_s": 5.3, "declared_lost": 0, "declared_suspect": 2, "generations_broken": 0}]
        failing = {**whole, "code": 1, "death": "exit code 1"}
        failed = {"agents": 1_000, "code": None, "failed": "Error: 3 of 1000"}
        peers = [{"peer": "c10d", "members": 128, "seconds": 11.0}, {"peer": "torchft", "members": 1_000, "seconds": None, "why": ["no"]}]
        stores = [{"store": "ours", "total_ms": 200.0}, {"store": "torch", "total_ms": 600.0}, {"store": "torch, names", "over_s": 300}]
        meta = {"command": "make bench", "date": "2026-01-01", "commit": "abc", "machine": "2 cores", "load": 0.1}
        page = scale.block({"meta": meta, "fleet": [whole, failing, failed], "peers": peers, "store": stores})
        for words in (
            "463 MiB, 0.31 cores | 500 MiB, 0.5 cores", "decide for 1,000 nodes | p50 20, p99 45 ms (100 times) | p99 50 ms",
            "a member ends with exit code 1, decide", "failed: Error: 3 of 1000", "5.3 s, 0 lost, 2 suspect", "one round of 128 | 11.0 s",
            "one quorum of 1,000 | not measured: ['no']", "3.00 times as fast", "as it starts | over 300 s",
        ):
            self.assertIn(words, page)


class Trees(unittest.TestCase):
    def test_a_tree_is_cut_at_once_and_strangers_live(self):
        def tree():
            started = subprocess.Popen(
                ["sh", "-c", "sleep 1000 & setsid sleep 1000 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
            )
            started.stdout.readline()
            self.addCleanup(started.wait)
            self.addCleanup(lambda: [processes.send(pid, 9) for pid in processes.below({started.pid})])
            self.addCleanup(started.stdout.close)
            return started

        victim, stranger = tree(), tree()
        members = processes.below({victim.pid})
        self.assertEqual(len(members), 3)
        self.assertGreater(processes.cut(lambda: processes.below({victim.pid})), 0)
        victim.wait()
        self.assertEqual(victim.returncode, -9)
        self.assertEqual(len(processes.below({stranger.pid})), 3)
        with self.assertRaises(LookupError):
            processes.cut(lambda: processes.below({victim.pid}))

    def test_a_folder_is_not_its_namesake(self):
        with tempfile.TemporaryDirectory() as folder:
            one = subprocess.Popen(["sleep", "1000"], env={"WHERE": f"{folder}/node-1/state"})
            other = subprocess.Popen(["sleep", "1000"], env={"WHERE": f"{folder}/node-10"})
            try:
                self.assertEqual(processes.naming(f"{folder}/node-1") & {one.pid, other.pid}, {one.pid})
            finally:
                for process in (one, other):
                    process.kill()
                    process.wait()

    def test_a_crowd_is_there_and_then_gone(self):
        mine = lambda: {pid for pid in processes.below({os.getpid()}) if processes.state(pid) not in "ZX"}  # noqa: E731
        before = mine()
        with processes.crowd(3):
            self.assertEqual(len(mine() - before), 4, "three, and their parent")
        self.assertLessEqual(mine(), before)


class Containers(unittest.TestCase):
    def test_a_process_in_a_container_is_found_outside(self):
        try:
            containers.check()
        except containers.Missing as missing:
            self.skipTest(str(missing))
        says = "import os; print(os.getpid(), os.stat('/proc/self/ns/pid').st_ino, flush=True); input()"
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        pair = [subprocess.Popen([*containers.COMMAND, sys.executable, "-c", says], **streams) for _ in range(2)]
        try:
            for container in pair:
                pid, namespace = map(int, container.stdout.readline().split())
                self.assertEqual(pid, 1)
                here = processes.outside(pid, namespace)
                self.assertIn(here, processes.below({container.pid}))
                self.assertEqual(watch.Member(f"{pid}-{namespace}").pid, here)
                os.kill(here, 9)
                self.assertNotEqual(container.wait(), 0)
                with self.assertRaises(LookupError):
                    processes.outside(pid, namespace)
        finally:
            for container in pair:
                container.kill()
                container.communicate()

    def test_outside_of_containers_a_pid_is_what_it_is(self):
        own = os.stat("/proc/self/ns/pid").st_ino
        self.assertEqual(processes.outside(os.getpid(), own), os.getpid())
        self.assertEqual(watch.Member("11").pid, 11)

    def test_why_there_are_none_is_said(self):
        for command, why in ((["false"], "exit code 1"), (["no-such-program"], "no-such-program"), (["sh", "-c", "echo refused >&2; exit 1"], "refused")):
            with unittest.mock.patch.object(containers, "COMMAND", command), self.assertRaisesRegex(containers.Missing, why):
                containers.check()


class Meters(unittest.TestCase):
    def test_work_of_the_folder_is_ours_and_other_work_is_not(self):
        with tempfile.TemporaryDirectory() as folder:
            for whose, share in (("ours", 0.0), ("theirs", 0.2 / os.cpu_count())):
                meter = processes.Meter(f"{folder}/ours")
                # The parent is init, as for another user's process, so that only its name can tell. It stays until it was looked at.
                work = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done; read end"
                start = ["sh", "-c", f"exec 3<&0; setsid sh -c '{work}' <&3 &"]
                where = {"WHERE": f"{folder}/{whose}"}
                with subprocess.Popen(start, env=where, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
                    self.assertEqual(shell.stdout.readline(), b"done\n")
                    meter.look(now=True)
                ours, theirs = meter.seen()
                self.assertEqual(ours > 10, whose == "ours", f"{ours} ticks of ours, {theirs} of others")
                self.assertGreaterEqual(meter.others(), share)

    def test_what_nobody_accounts_for_is_divided_as_what_was_seen(self):
        meter = processes.Meter("/nothing/is/here")
        meter.look = lambda now=False: None
        meter.ours, meter.before = {"ours"}, {"ours": 5, "theirs": 7}
        meter.ticks = {"ours": 35, "theirs": 17}
        meter.times = (0, 0, 0)
        with unittest.mock.patch.object(processes, "processor_times", lambda: (100, 20, 0)):
            self.assertAlmostEqual(meter.others(), 0.2, msg="30 to 10 were seen of 80")
        with unittest.mock.patch.object(processes, "processor_times", lambda: (100, 20, 40)):
            self.assertAlmostEqual(meter.others(), 0.5, msg="40 were stolen, and all the rest was seen")


class TestQuotes(unittest.TestCase):
    PAGE = "text\n<!-- quoted race -->\n| what | s |\n| --- | --- |\n| killed | 0.5 |\n<!-- end -->\nmore\n<!-- quoted tls -->\n| killed | 1 |\n<!-- end -->\n"

    def test_a_quoted_row_follows_its_table(self):
        table = "| what | seconds |\n| --- | --- |\n| first start | 6 |\n| killed | 0.28 |\n\nMeasured on 2 cores.\n"
        wanted = self.PAGE.replace("| what | s |", "| what | seconds |").replace("| killed | 0.5 |", "| killed | 0.28 |")
        self.assertEqual(report.requoted(self.PAGE, "race", table), wanted)
        self.assertEqual(report.requoted(self.PAGE, "store", table), self.PAGE)

    def test_a_row_that_is_gone_is_named(self):
        with self.assertRaisesRegex(SystemExit, "race does not have: killed"):
            report.requoted(self.PAGE, "race", "| what |\n| --- |\n| cut | 1 |\n")


class Senses(unittest.TestCase):
    def test_nine_in_ten_do_not_exceed_the_ninth(self):
        self.assertEqual([senses.ninth(range(1, count + 1)) for count in (1, 9, 10, 11, 20)], [1, 9, 9, 10, 18])

    def test_a_row_for_each_kind_that_was_measured(self):
        meta = {"date": "today", "commit": "abc", "machine": "this", "load": 0.1}
        cost = {"percent": [0.1, 0.2, 0.3], "runs": 5, "seconds": 30, "mib": 6.2}
        page = senses.block({"meta": meta, "delays": {"xid": [0.5, 0.1, 0.3]}, "cost": cost})
        self.assertIn("| XID | an event | 0.30 s | 0.50 s | 0.50 s | 3 |\n", page)
        self.assertNotIn("NVLink", page)
        self.assertIn("0.20 % of one core (0.10 to 0.30, 5 runs of 30 s", page)


if __name__ == "__main__":
    unittest.main()
