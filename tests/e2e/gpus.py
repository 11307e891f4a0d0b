"""Another story, of GPUs that break under jobs beside a stranger's pod: `tools/e2e --simulated-gpus`.

The nodes' GPUs are simulated (tests/e2e/hardware), everything else is real: the scheduler gives them out by limits, the kubelets say which
pod holds which, the agents look at them, and the coordinator moves jobs and cordons a node. The simulated device plugin never tells the kubelet
that a GPU is sick, so nobody but Muster can know it.

One node has four GPUs: three belong to three jobs, one to a pod of somebody else. XID 48 (an uncorrectable memory error) comes to one after the other.

The image for --image-hardware has muster-hardware, muster-fake-gpus and libmuster_fake_nvml.so of target/muster/bin in /usr/local/bin, and a libc.
"""

import json
import time

from cluster import NAMESPACE, Overlay, check, name_of, target, wait_until, workload
from objects import LastWords, Team
from story import Story, told

SPACE = "muster-e2e-gpus"
GPUS = 4
FAULT = "xid=48"
# The driver also counts the error. After a reset of the GPU its counter begins anew, and that is how the agent knows.
COUNTED = "silent-ecc=1"
FOR_EVER = ("--epochs", "1000000", "--step-delay-ms", "100")
JOBS = ("spread", "second", "third")
NEIGHBOUR = "neighbour"
# The neighbour notices nothing of all this, and says so: it counts.
COUNTS = "import time\nn = 0\nwhile True:\n    print(n, flush=True)\n    n += 1\n    time.sleep(0.2)\n"
RESOURCE = "nvidia.com/gpu"


class GpuOverlay(Overlay):
    """There is no container for workers, and there is one more image."""

    def patches(self, images):
        containers = [{"name": "gpus"}, {"name": "agent"}]
        first = {"name": "hardware"}
        if images.hardware:
            containers[0]["image"] = first["image"] = images.hardware
        if images.agent:
            containers[1]["image"] = images.agent
        patches = [workload("DaemonSet", "muster-agent", {"initContainers": [first], "containers": containers})]
        if images.coordinator:
            patches.append(workload("StatefulSet", "muster-coordinator", {"containers": [{"name": "coordinator", "image": images.coordinator}]}))
        return [{"patch": json.dumps(patch), "target": target(patch)} for patch in patches]


class Gpus(Story):
    overlay_of = GpuOverlay

    def __init__(self, options, kubectl, folder):
        super().__init__(options, kubectl, folder)
        self.team = Team(self, SPACE)
        self.node, self.pods, self.held = None, {}, {}

    def steps(self):
        return [
            ("look at the cluster", self.look),
            ("install", self.install),
            ("log in with a join token", self.log_in),
            ("the last words of a job that fails", LastWords(self).run),
            ("a device plugin offers GPUs", self.offered),
            ("three jobs and a stranger's pod hold the GPUs of one node", self.place),
            (f"{FAULT} on a GPU of the first job", self.first),
            (f"{FAULT} on the GPU of the stranger", self.of_the_neighbour),
            (f"{FAULT} on the GPU of the second job", self.second),
            (f"{FAULT} on the GPU of the third job: the node is cordoned", self.third),
            ("kubectl uncordon", self.uncordon),
            ("the GPUs are reset, and the node takes work again", self.mend),
            *([] if self.options.keep else [("uninstall", self.uninstall)]),
        ]

    def offered(self):
        """The scheduler, NVML and Muster know of the same GPUs."""
        began = time.monotonic()

        def so():
            found = {node["metadata"]["name"]: node["status"]["allocatable"].get(RESOURCE) for node in self.kubectl.objects("nodes")}
            return all(found.get(node) == str(GPUS) for node in self.cluster.pods()) and found

        wait_until(so, 60, f"each node has {GPUS} {RESOURCE}")
        for node in self.cluster.pods():
            wait_until(lambda node=node: self.seen(node)["status"].get("gpuHolders") == [], 60, f"Muster knows that nobody holds a GPU of {node}")
            check(len(self.seen(node)["status"]["gpus"]) == GPUS, f"Muster sees {GPUS} GPUs on {node}")
        return f"{GPUS} on each of {self.nodes} nodes after {time.monotonic() - began:.1f} s, and Muster knows that nobody holds one"

    # Who holds what

    def place(self):
        began = time.monotonic()
        self.team.create()
        apart = {"labelSelector": {"matchLabels": {"muster.dev/job-name": JOBS[0]}}, "topologyKey": "kubernetes.io/hostname"}
        self.apply(JOBS[0], 2, {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}})
        before = self.team.trains(JOBS[0], 2)
        self.pods[JOBS[0]] = before["ranks"][-1]["node"].split(".")[0]
        self.node = self.host_of(self.pods[JOBS[0]])
        others = [node for node in self.cluster.pods() if node != self.node]
        try:
            for node in others:
                self.kubectl("cordon", node)
            self.team("apply", "-f", "-", stdin=json.dumps(self.neighbour()))
            for job in JOBS[1:]:
                self.apply(job, 1)
            for job in JOBS[1:]:
                self.pods[job] = self.team.trains(job, 1)["ranks"][0]["node"].split(".")[0]
        finally:
            for node in others:
                self.kubectl("uncordon", node)
        self.pods[NEIGHBOUR] = NEIGHBOUR
        self.team("wait", f"pod/{NEIGHBOUR}", "--for=condition=Ready", "--timeout=60s", timeout=70)
        for who, pod in self.pods.items():
            check(self.host_of(pod) == self.node, f"{pod} is on {self.node}")
            # What the device plugin has given to the container.
            self.held[who] = self.team("exec", pod, "--", "printenv", "NVIDIA_VISIBLE_DEVICES").strip()
        expected = sorted((gpu, SPACE, self.pods[who]) for who, gpu in self.held.items())
        check(len({gpu for gpu, _, _ in expected}) == GPUS, f"they hold {GPUS} different GPUs ({expected})")

        def so():
            holders = self.seen(self.node)["status"].get("gpuHolders") or []
            return sorted((one["gpu"], one.get("namespace"), one.get("pod")) for one in holders) == expected

        wait_until(so, 30, f"Muster knows, by the kubelet's word, who holds the GPUs of {self.node}")
        return f"all {GPUS} of {self.node}, and Muster knows who holds which, after {time.monotonic() - began:.1f} s"

    def apply(self, job, nodes, pod=None):
        options = self.options
        folders = options.host_dir
        volumes = [{"name": "script", "configMap": {"name": "script"}}, {"name": "data", "emptyDir": {}}]
        volumes += [{"name": f"host-{at}", "hostPath": {"path": folder, "type": "Directory"}} for at, folder in enumerate(folders)]
        mounts = [{"name": "script", "mountPath": "/muster-e2e"}, {"name": "data", "mountPath": "/data"}]
        mounts += [{"name": f"host-{at}", "mountPath": folder, "readOnly": True} for at, folder in enumerate(folders)]
        spec = {"replicas": nodes, "minReplicas": 1, "maxReplicas": nodes, "procPerNode": 1, "gpusPerNode": 1}
        self.team.apply(job, FOR_EVER, spec=spec, pod=(pod or {}) | {"volumes": volumes}, worker={"volumeMounts": mounts})

    def neighbour(self):
        limits = {"limits": {RESOURCE: 1, "memory": "64Mi"}}
        container = {"name": "train", "image": self.workers_image(), "imagePullPolicy": "IfNotPresent", "resources": limits}
        container["command"] = ["python3", "-c", COUNTS]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NEIGHBOUR}, "spec": {"containers": [container]}}

    # What breaks

    def first(self):
        """The job goes on with its other pod at once, and grows when another one is ready."""
        before, others = self.team.status(JOBS[0]), self.untouched(*JOBS[1:])
        began, events = time.monotonic(), self.events("GPUUnhealthy")
        self.break_gpu(JOBS[0])
        said = self.finding(JOBS[0])
        found = time.monotonic() - began
        self.ill("HardwareUnhealthy")
        wait_until(lambda: self.events("GPUUnhealthy") - events, 30, "there is an event GPUUnhealthy")
        marked = time.monotonic() - began
        self.goes_on(before)
        smaller = time.monotonic() - began
        status = self.team.trains(JOBS[0], 2, newer_than=before)
        took = time.monotonic() - began
        self.moved(JOBS[0], before)
        others()
        check(not self.object()["spec"].get("unschedulable"), "one sick GPU cordons no node")
        return (
            f"found after {found:.1f} s ({said}); MusterGPUHealthy is False after {marked:.1f} s, with an event; the job goes on without the pod"
            f" after {smaller:.1f} s, and with another one elsewhere after {took:.1f} s: {told(status)}; nobody else noticed"
        )

    def of_the_neighbour(self):
        others = self.untouched(*JOBS)
        began = time.monotonic()
        self.break_gpu(NEIGHBOUR)
        self.finding(NEIGHBOUR)
        took = time.monotonic() - began
        others()
        incidents = [self.team.incidents(job)[-1]["cause"] for job in JOBS[1:]]
        check("NodeUnhealthy" not in incidents, f"no job has left its node ({incidents})")
        return f"found after {took:.1f} s; no job moved, and the stranger's pod runs on"

    def second(self):
        return self.moves(JOBS[1], JOBS[2])

    def third(self):
        """The third failure of the third job, all of them the node's own."""
        job, events = JOBS[2], self.events("Cordoned")
        before, began = self.team.status(job), time.monotonic()
        self.break_gpu(job)
        notes = wait_until(lambda: (found := self.notes()) and "cordoned-by" in found and found, 60, f"{self.node} is cordoned")
        took = time.monotonic() - began
        check(self.object()["spec"].get("unschedulable"), f"{self.node} is unschedulable")
        check(notes["cordoned-by"] == "muster" and notes["cordoned-reason"].startswith("restart storm"), f"it says who and why ({notes})")
        check(all(f"{SPACE}/{job}" in notes["cordoned-job"] for job in JOBS), f"it names the jobs ({notes['cordoned-job']})")
        self.ill("RestartStorm")
        wait_until(lambda: self.events("Cordoned") - events, 30, "there is an event Cordoned")
        self.team.trains(job, 1, newer_than=before)
        moved = time.monotonic() - began
        self.moved(job, before)
        self.neighbour_runs()
        return f"cordoned after {took:.1f} s: {notes['cordoned-reason']}; the job trains elsewhere after {moved:.1f} s; the stranger's pod runs on"

    def moves(self, job, *others):
        before, untouched = self.team.status(job), self.untouched(*others)
        began = time.monotonic()
        self.break_gpu(job)
        self.finding(job)
        found = time.monotonic() - began
        status = self.team.trains(job, 1, newer_than=before)
        took = time.monotonic() - began
        self.moved(job, before)
        untouched()
        return f"found after {found:.1f} s; it trains on {self.host_of(status['ranks'][0]['node'].split('.')[0])} after {took:.1f} s"

    def uncordon(self):
        events, began = self.events("Uncordoned"), time.monotonic()
        self.kubectl("uncordon", self.node)
        wait_until(lambda: not self.notes() and not self.object()["spec"].get("unschedulable"), 30, "Muster's cordon is gone from the object")
        wait_until(lambda: self.seen(self.node)["spec"].get("cordon") is None, 30, "the cordon is over for Muster, too")
        wait_until(lambda: "HoldOff" in self.admin("describe", "node", self.node), 30, "Muster holds off, and says so")
        wait_until(lambda: self.events("Uncordoned") - events, 30, "there is an event Uncordoned")
        # The GPUs are as sick as before.
        self.ill("HardwareUnhealthy")
        return f"the cordon is over everywhere after {time.monotonic() - began:.1f} s, and Muster holds off; the GPUs still count as sick"

    def mend(self):
        began = time.monotonic()
        for who in self.held:
            self.inject(self.index(who), "healthy")
        self.healthy()
        well = time.monotonic() - began
        others = [node for node in self.cluster.pods() if node != self.node]
        try:
            for node in others:
                self.kubectl("cordon", node)
            self.apply("fourth", 1)
            status = self.team.trains("fourth", 1)
        finally:
            for node in others:
                self.kubectl("uncordon", node)
        pod = status["ranks"][0]["node"].split(".")[0]
        check(self.host_of(pod) == self.node, f"the new job is on {self.node} ({self.host_of(pod)})")
        self.neighbour_runs()
        return f"MusterGPUHealthy is True after {well:.1f} s; a new job trains there after {time.monotonic() - began:.1f} s"

    def uninstall(self):
        began = time.monotonic()
        self.team("delete", "mj", "--all", "--timeout=120s", timeout=130)
        self.team.delete()
        self.forward.close()
        self.overlay.delete(self.options.patience)
        left = [f"{kind}/{name}" for kind, _, name in self.clusterwide() if self.exists(kind, name)]
        check(not left, f"nothing is left ({', '.join(left)})")
        self.installed = False
        return f"nothing is left after {time.monotonic() - began:.1f} s"

    # Questions that several steps ask

    def break_gpu(self, who):
        gpu = self.index(who)
        for fault in (FAULT, COUNTED):
            self.inject(gpu, fault)

    def index(self, who):
        """NVML counts its GPUs from 0."""
        return next(gpu["index"] for gpu in self.seen(self.node)["status"]["gpus"] if gpu["uuid"] == self.held[who])

    def inject(self, gpu, fault):
        pod = name_of(self.cluster.pods()[self.node])
        self.kubectl("-n", NAMESPACE, "exec", pod, "-c", "gpus", "--", "muster-hardware", "inject", "/muster/hardware/machine", f"gpu{gpu}", fault)

    def finding(self, who):
        """What the agent of the host has found about the GPU."""

        def so():
            findings = self.seen(self.node)["status"]["findings"]
            return next((one for one in findings if one["check"] == "xid:48" and self.held[who] in json.dumps(one)), None)

        found = wait_until(so, 30, f"the GPU of {who} has a finding")
        check(found["severity"] == "fail_now", f"it ends what runs there ({found})")
        return found["reason"]

    def goes_on(self, before):
        """With whatever pods it has."""

        def so():
            status = self.team.status(JOBS[0])
            running = status["generation"] > before["generation"] and status["phase"] == "Running"
            return running and any(rank.get("lastStep") is not None for rank in status.get("ranks") or [])

        wait_until(so, self.options.patience, f"{JOBS[0]} makes steps in a newer generation")

    def moved(self, job, before):
        """The node is charged, never the job, and the pod is gone."""
        incident = next(one for one in self.team.incidents(job) if one["fromGeneration"] == before["generation"])
        check((incident["cause"], incident["charged"]) == ("NodeUnhealthy", "node"), f"the node is charged ({incident})")
        check("48" in incident["message"], f"it says why ({incident['message']})")
        hosts = lambda: {self.host_of(pod) for pod in self.team.pods(job)}  # noqa: E731
        wait_until(lambda: self.pods[job] not in self.team.pods(job), 60, f"the pod {self.pods[job]} is gone")
        check(self.node not in hosts(), f"{job} has left {self.node} ({hosts()})")

    def untouched(self, *jobs):
        """Returns a question: do these jobs still make steps in the same generation, with the same processes, and does the neighbour count on?"""
        before = {job: self.team.status(job) for job in jobs}
        counted = self.count()

        def so():
            for job, status in before.items():
                now = lambda job=job: self.team.status(job)  # noqa: E731
                wait_until(lambda now=now, status=status: now()["lastStep"] > status["lastStep"] + 10, 60, f"{job} makes steps")
                check(now()["generation"] == status["generation"], f"{job} is in generation {status['generation']}")
            self.neighbour_runs(counted)

        return so

    def neighbour_runs(self, counted=0):
        wait_until(lambda: self.count() > counted, 30, "the stranger's pod counts on")
        status = self.team.kubectl.json("get", "pod", NEIGHBOUR, "-n", SPACE)["status"]
        check(status["phase"] == "Running" and status["containerStatuses"][0]["restartCount"] == 0, f"nobody has touched it ({status})")

    def count(self):
        return int(self.team("logs", NEIGHBOUR, "--tail=1").strip() or 0)

    def host_of(self, pod):
        return self.kubectl.json("get", "pod", pod, "-n", SPACE)["spec"].get("nodeName")

    def seen(self, node):
        return self.admin.json("get", "node", node)

    def object(self):
        return self.kubectl.json("get", "node", self.node)

    def notes(self):
        annotations = self.object()["metadata"].get("annotations", {})
        return {key.removeprefix("muster.dev/"): value for key, value in annotations.items() if key.startswith("muster.dev/")}

    def condition(self):
        return next((one for one in self.object()["status"]["conditions"] if one["type"] == "MusterGPUHealthy"), {})

    def ill(self, reason):
        """The Node object says that it is."""
        so = lambda: (now := self.condition()).get("status") == "False" and now["reason"] == reason  # noqa: E731
        wait_until(so, 30, f"MusterGPUHealthy is False, because of {reason}")

    def healthy(self):
        wait_until(lambda: self.condition().get("status") == "True", 90, "MusterGPUHealthy is True")

    def events(self, reason):
        fields = f"involvedObject.kind=Node,involvedObject.name={self.node},reason={reason}"
        return {event["metadata"]["uid"] for event in self.kubectl.objects("events", "-n", "default", f"--field-selector={fields}")}

    def workers_image(self):
        return self.options.image_workers

    def cleaned_up(self, keep):
        if self.installed and not keep:
            self.team.delete()
        return super().cleaned_up(keep)
