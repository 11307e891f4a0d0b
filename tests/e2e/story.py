"""The steps of the story, in their order, each with what must be true after it. `cluster.py` knows how to ask and how to break things."""

import json
import re
import shlex
import sys
import time

import cordons
import fields
import installs
import life
import objects
from cluster import AUDIENCE, COORDINATOR, NAMESPACE, SCRIPT, Cluster, Forward, Muster, NotSo, NotTested, Overlay, check, name_of, run, wait_until

TEAM = "muster-e2e-team"
# One epoch is 23 steps. The delay stands in for a real model's step. The first job is over in half a minute, the second one never.
SHORT = ("--epochs", "12", "--step-delay-ms", "50")
LONG = ("--epochs", "1000000", "--step-delay-ms", "100")


class Images:
    """None: that of the overlay."""

    def __init__(self, agent, coordinator, workers, hardware=None):
        self.agent, self.coordinator, self.workers, self.hardware = agent, coordinator, workers, hardware


class Story:
    overlay_of = Overlay

    def __init__(self, options, kubectl, folder):
        self.options, self.kubectl, self.folder = options, kubectl, folder
        self.cluster = Cluster(kubectl)
        images = Images(options.image_agent, options.image_coordinator, options.image_workers, options.image_hardware)
        self.overlay = self.overlay_of(kubectl, folder, options.overlay, images)
        self.forward = Forward(kubectl)
        self.life = life.Life(self)
        self.admin = self.user("admin")
        self.installed = False
        self.nodes = 0

    def steps(self):
        first = [("look at the cluster", self.look), *self.shipped(), ("install", self.install), ("log in with a join token", self.log_in)]
        last = [] if self.options.keep else [("uninstall under a running job", self.uninstall)]
        long = self.start_long_job
        between = [
            ("train digits on all nodes, to the end", self.train),
            ("users of Kubernetes, by their tokens", self.users),
            ("objects whose workers are in pods of their own", self.with_pods(objects.Objects(self).run)),
            ("the last words of a job that fails", self.with_pods(objects.LastWords(self).run)),
            ("fields of a job object", self.with_pods(fields.Fields(self).run)),
            *((name, self.with_pods(event)) for name, event in self.life.steps()),
            ("cordons on Node objects", self.cordons),
            ("a job without an end", long),
            ("kill a rank", self.kill_rank),
            ("restart an agent's container", self.restart_agent),
            ("delete an agent's pod", self.delete_pod),
            ("drain a node", self.drain),
            ("cut a node off the network", self.partition),
            ("cut a node's power", self.power_cut),
            ("scale", self.scale),
            ("the coordinator goes away", self.failover),
            ("change the certificate authority", self.change_authority),
            ("upgrade the coordinator", self.upgrade_coordinator),
            ("upgrade the agents in their pods", self.upgrade_in_place),
            ("upgrade the agents", self.upgrade_agents),
            ("explain what happened", self.explain),
        ]
        asked = [(name, step) for name, step in between if step == long or re.search(self.options.only, name)]
        return [*first, *asked, *last]

    def shipped(self):
        name = "every overlay and component, by the words of the guide"
        return [(name, installs.Installs(self).run)] if re.search(self.options.only, name) else []

    # Before anything runs

    def look(self):
        version = self.kubectl.json("version")["serverVersion"]["gitVersion"]
        major, minor = map(int, re.match(r"v(\d+)\.(\d+)", version).groups())
        check((major, minor) >= (1, 29), f"Kubernetes is 1.29 or later (it is {version})")
        there = [name for kind, _, name in self.clusterwide() if self.exists(kind, name)]
        check(not there, f"nothing of Muster is in this cluster ({', '.join(there)} is there)")
        nodes = self.kubectl.objects("nodes")
        ready = [node["metadata"]["name"] for node in nodes if condition(node, "Ready") == "True"]
        check(len(ready) >= 3, f"three nodes are ready, or more ({len(ready)} are)")
        context = (self.kubectl("config", "current-context", may_fail=True) or "the cluster it runs in").strip()
        return f"Kubernetes {version} ({context}), {len(ready)} of {len(nodes)} nodes ready"

    def clusterwide(self):
        """What the overlay has that belongs to no namespace, and the namespace, with which the rest goes."""
        return [entry for entry in self.overlay.objects() if not entry[1] or entry[0] == "Namespace"]

    def exists(self, kind, name):
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "-o", "name").strip())

    def install(self):
        self.installed = True
        self.overlay.apply()
        self.cluster.rolled_out("statefulset/muster-coordinator", "daemonset/muster-agent", timeout=self.options.patience)
        self.nodes = len(self.cluster.pods())
        check(self.nodes >= 3, f"three agents or more ({self.nodes} are there)")
        return f"a coordinator and {self.nodes} agents are ready"

    def log_in(self):
        token = self.cluster.in_coordinator("token", "create", "--user", "ann", "--role", "admin", "--all-namespaces")
        pin = self.cluster.in_coordinator("pin")
        self.admin("login", self.admin.url, "--ca-pin", pin, token=token)
        self.all_nodes_ready(60)
        return f"{self.admin('whoami').strip()}; it sees {self.nodes} nodes"

    # Training

    def train(self):
        began = time.monotonic()
        self.submit(self.admin, "digits", SHORT, self.nodes)
        status = self.trains("digits", self.nodes)
        first = time.monotonic() - began
        self.admin("wait", "digits", "--for=complete", f"--timeout={self.options.patience}s", timeout=self.options.patience + 10)
        final = self.status("digits")
        check(final["phase"] == "Succeeded", f"the job succeeded (it is {final['phase']}: {final.get('message')})")
        line = next((line for line in self.admin("logs", "digits", "--rank", "0").splitlines() if "test accuracy" in line), None)
        check(line, "rank 0 printed its accuracy")
        accuracy = float(re.search(r"test accuracy ([\d.]+)", line)[1])
        check(accuracy >= 0.9, f"at least 90 % of the test images are read right ({accuracy})")
        pod = name_of(self.cluster.pods()[rank_of(status, 0)["node"]])
        shown = self.kubectl("-n", NAMESPACE, "logs", pod, "-c", "workers")
        check("[digits rank 0] step=" in shown, f"kubectl logs {pod} shows what rank 0 printed")
        return f"world {status['worldSize']}, first step after {first:.1f} s, accuracy {accuracy}"

    def with_pods(self, step):
        def so():
            if not objects.are_made(self.kubectl):
                raise NotTested("the overlay has no component worker-pods")
            return step()

        return so

    def cordons(self):
        if not cordons.are_written(self.kubectl):
            raise NotTested("the overlay has no component cordon")
        return cordons.Cordons(self).run()

    def submit_long(self, name, nodes):
        self.submit(self.admin, name, LONG, nodes)

    def start_long_job(self):
        began = time.monotonic()
        self.submit_long("story", self.nodes)
        status = self.trains("story", self.nodes)
        return f"first step after {time.monotonic() - began:.1f} s: {told(status)}"

    # Breaking things, with the long job on all nodes before and after

    def kill_rank(self):
        before = self.status("story")
        victim = next(rank for rank in before["ranks"] if rank["rank"] != 0)
        pod = self.cluster.pods()[victim["node"]]
        restarts = self.cluster.restarts(name_of(pod), "workers")
        began = time.monotonic()
        self.kill(victim)
        status = self.trains("story", self.nodes, newer_than=before)
        check(status["generation"] == before["generation"] + 1, "there is one new generation")
        now = self.cluster.pods()[victim["node"]]
        check(uid(now) == uid(pod) and self.cluster.restarts(name_of(now), "workers") == restarts, "the pod and its container stayed")
        return f"rank {victim['rank']} on {victim['node']}; first step after {time.monotonic() - began:.1f} s: {told(status)}"

    def kill(self, rank):
        self.cluster.in_workers(name_of(self.cluster.pods()[rank["node"]]), f"kill -9 {rank['pid']}")

    def restart_agent(self):
        before = self.status("story")
        node = rank_of(before, 0)["node"]
        began = time.monotonic()
        self.cluster.restart_container(name_of(self.cluster.pods()[node]), "agent", self.workers_image())
        self.goes_on_untouched(before)
        return f"the agent of {node} was back after {time.monotonic() - began:.1f} s; same generation, same workers"

    def delete_pod(self):
        before = self.status("story")
        node = before["ranks"][-1]["node"]
        pod = self.cluster.pods()[node]
        began = time.monotonic()
        self.kubectl("-n", NAMESPACE, "delete", "pod", name_of(pod), "--wait=false")
        wait_until(lambda: uid(self.cluster.pods().get(node)) not in (None, uid(pod)), self.options.patience, f"{node} has another pod")
        status = self.trains("story", self.nodes, newer_than=before)
        return f"on {node}; all nodes train after {time.monotonic() - began:.1f} s: {told(status)}"

    def drain(self):
        """kubectl drain does not evict pods of a DaemonSet, so what runs goes on. The node's own reboot would end the pod."""
        before = self.status("story")
        node = self.spare_node(before)
        try:
            self.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", timeout=130)
            self.goes_on_untouched(before)
            self.admin("cordon", node, "--reason", "drained")
            self.kubectl("-n", NAMESPACE, "delete", "pod", name_of(self.cluster.pods()[node]), "--wait=false")
            began = time.monotonic()
            without = self.trains("story", self.nodes - 1, newer_than=before)
            check(node not in nodes_of(without), f"{node} is out of the job")
            took = time.monotonic() - began
        finally:
            self.kubectl("uncordon", node, may_fail=True)
        self.admin("uncordon", node)
        self.trains("story", self.nodes, newer_than=without)
        return f"{node}: the drain touched no worker; without its pod {self.nodes - 1} nodes train after {took:.1f} s; uncordoned, it is back"

    def partition(self):
        return self.without_a_node(self.options.partition, self.options.heal, "--partition and --heal")

    def power_cut(self):
        return self.without_a_node(self.options.node_down, self.options.node_up, "--node-down and --node-up")

    def without_a_node(self, cut, restore, flags):
        if not cut:
            raise NotTested(f"without {flags}")
        before = self.status("story")
        node = self.spare_node(before)
        began = time.monotonic()
        try:
            run(cut, node)
            without = self.trains("story", self.nodes - 1, newer_than=before)
            took = time.monotonic() - began
            check(node not in nodes_of(without), f"{node} is out of the job")
        finally:
            run(restore, node)
        began = time.monotonic()
        status = self.trains("story", self.nodes, newer_than=without)
        back = time.monotonic() - began
        return f"{node}: {self.nodes - 1} nodes train after {took:.1f} s; back in the job {back:.1f} s after its return: {told(status)}"

    def scale(self):
        took = []
        for nodes in (self.nodes - 1, self.nodes):
            before, began = self.status("story"), time.monotonic()
            self.admin("scale", "story", "--nodes", str(nodes))
            self.trains("story", nodes, newer_than=before)
            took.append(f"to {nodes} nodes in {time.monotonic() - began:.1f} s")
        return ", ".join(took)

    # The control plane

    def failover(self):
        before = self.status("story")
        began = time.monotonic()
        pod = self.cluster.coordinator()
        if self.cluster.jobs_outlive(pod):
            self.kubectl("-n", NAMESPACE, "delete", "pod", name_of(pod), "--wait=false")
            what = f"the pod {name_of(pod)} was deleted"
            if self.cluster.stand_bys():
                other = wait_until(lambda: (now := name_of(self.cluster.coordinator())) != name_of(pod) and now, 60, "another coordinator decides")
                what += f", {other} decided after {time.monotonic() - began:.1f} s"
        else:
            self.cluster.restart_container(COORDINATOR, "coordinator", self.workers_image())
            what = "its container was restarted (its volume would not outlive the pod)"
        self.forward.close()
        self.cluster.rolled_out("statefulset/muster-coordinator", timeout=self.options.patience)
        self.goes_on_untouched(before)
        return f"{what}; same generation and workers, status right after {time.monotonic() - began:.1f} s"

    def change_authority(self):
        before = self.status("story")
        began = time.monotonic()
        self.cluster.in_coordinator("authority", "rotate")
        wait_until(lambda: self.authorities() == 2, 30, "the ConfigMap has both authorities")
        # The kubelet writes a changed ConfigMap into the pods within a minute or two.
        look = 'until [ "$(grep -c "BEGIN CERT" /proc/1/root/muster/ca/ca.crt)" = 2 ]; do sleep 1; done'
        pods = self.cluster.pods()
        looks = [self.cluster.beside(name_of(pod), "agent", self.workers_image(), look) for pod in pods.values()]
        ended = wait_until(lambda: all(ended := [over() for over in looks]) and ended, 240, "all pods have both authorities")
        check(all(state["exitCode"] == 0 for state in ended), f"each shell could look into its pod ({ended})")
        known = time.monotonic() - began

        def nobody_needs_the_old():
            self.admin("nodes")
            return not json.loads(self.cluster.in_coordinator("authority", "status", "-o", "json"))["needsOld"]

        wait_until(nobody_needs_the_old, 60, "nobody needs the old authority")
        self.cluster.in_coordinator("authority", "finish")
        wait_until(lambda: self.authorities() == 1, 30, "the ConfigMap has the new authority alone")
        # An agent that dials anew, and a user. A kubelet starts a container at once only the first time, and later after 10 s or more.
        calm = min(map(name_of, pods.values()), key=lambda pod: self.cluster.restarts(pod, "agent"))
        self.cluster.restart_container(calm, "agent", self.workers_image())
        self.goes_on_untouched(before)
        return f"all pods knew both after {known:.0f} s, the old one was gone after {time.monotonic() - began:.0f} s; same generation and workers"

    def authorities(self):
        bundle = self.kubectl.json("get", "configmap", "muster-ca-bundle", "-n", NAMESPACE)
        return bundle["data"]["ca.crt"].count("BEGIN CERTIFICATE")

    # Upgrades

    def upgrade_coordinator(self):
        if not self.cluster.jobs_outlive(self.cluster.coordinator()):
            raise NotTested("its volume would not outlive the pod")
        before, began, image = self.status("story"), time.monotonic(), self.options.new_image_coordinator
        if image:
            self.kubectl("-n", NAMESPACE, "set", "image", "statefulset/muster-coordinator", f"coordinator={image}")
        else:
            self.kubectl("-n", NAMESPACE, "rollout", "restart", "statefulset/muster-coordinator")
        self.cluster.rolled_out("statefulset/muster-coordinator", timeout=self.options.patience)
        self.forward.close()
        self.goes_on_untouched(before)
        return f"{image or 'its image again'}: status right after {time.monotonic() - began:.1f} s; same generation and workers"

    def upgrade_in_place(self):
        """The kubelet starts only the agent's container again, and no worker notices."""
        image = self.options.new_image_agent
        if not image:
            raise NotTested("without --new-image-agent")
        before, began, pods = self.status("story"), time.monotonic(), self.cluster.pods()
        started = {node: self.cluster.started(name_of(pod), "agent") for node, pod in pods.items()}
        patch = json.dumps({"spec": {"initContainers": [{"name": "agent", "image": image}]}})
        for pod in pods.values():
            self.kubectl("-n", NAMESPACE, "patch", "pod", name_of(pod), "-p", patch)
        for node, pod in pods.items():
            again = lambda node=node, pod=pod: self.cluster.started(name_of(pod), "agent") not in (None, started[node])  # noqa: E731
            wait_until(again, 120, f"the agent of {node} is started again")
        self.goes_on_untouched(before)
        now = self.cluster.pods()
        check(all(uid(now[node]) == uid(pod) for node, pod in pods.items()), "no pod is new")
        return f"{image}: the same workers in the same {len(pods)} pods, status right after {time.monotonic() - began:.1f} s"

    def upgrade_agents(self):
        before, began, pods, options = self.status("story"), time.monotonic(), self.cluster.pods(), self.options
        if options.new_image_agent:
            # A new image is a new pod, and the job must outlive it.
            outlives = self.cluster.jobs_outlive(self.cluster.coordinator())
            coordinator = (outlives and options.new_image_coordinator) or options.image_coordinator
            self.overlay.write(Images(options.new_image_agent, coordinator, options.image_workers))
            self.overlay.apply()
        else:
            self.kubectl("-n", NAMESPACE, "rollout", "restart", "daemonset/muster-agent")
        self.cluster.rolled_out("daemonset/muster-agent", timeout=self.options.patience + 60 * self.nodes)
        now = self.cluster.pods()
        check(all(uid(now[node]) != uid(pod) for node, pod in pods.items()), "every pod is new")
        status = self.trains("story", self.nodes, newer_than=before)
        formed = status["generation"] - before["generation"]
        return f"{len(pods)} pods, one after another: all nodes train after {time.monotonic() - began:.1f} s, {formed} generations later"

    def explain(self):
        incidents = self.admin.json("explain", "story")["incidents"]
        causes = [incident["cause"] for incident in incidents]
        for cause in ("FirstStart",) if self.options.only else ("FirstStart", "WorkerKilled", "NodeLeaving", "NodeJoined", "Scaled"):
            check(cause in causes, f"there is a receipt for {cause} (there are {causes})")
        return ", ".join(causes)

    def uninstall(self):
        began = time.monotonic()
        self.forward.close()
        self.forget_checkpoints()
        # With --only, the step that ends its job may not have run.
        self.life.cleaned_up()
        self.overlay.delete(self.options.patience)
        left = [f"{kind}/{name}" for kind, _, name in self.clusterwide() if self.exists(kind, name)]
        check(not left, f"nothing is left ({', '.join(left)})")
        self.installed = False
        return f"nothing is left after {time.monotonic() - began:.1f} s"

    # Users whose rights the cluster knows

    def users(self):
        try:
            self.kubectl("create", "namespace", TEAM)
            for name, role in (("sue", "submitter"), ("vic", "viewer")):
                self.kubectl("create", "serviceaccount", name, "-n", TEAM)
                self.kubectl("create", "rolebinding", name, "-n", TEAM, "--clusterrole", f"muster-{role}", "--serviceaccount", f"{TEAM}:{name}")
            self.kubectl("create", "serviceaccount", "opal", "-n", TEAM)
            self.kubectl("create", "clusterrolebinding", TEAM, "--clusterrole", "muster-operator", "--serviceaccount", f"{TEAM}:opal")
            return self.three_users(self.by_token("sue"), self.by_kubeconfig("vic"), self.by_token("opal"))
        finally:
            self.kubectl("delete", "clusterrolebinding", TEAM, "--ignore-not-found", may_fail=True)
            self.kubectl("delete", "namespace", TEAM, "--ignore-not-found", may_fail=True, timeout=120)

    def three_users(self, sue, vic, opal):
        who = sue("whoami").strip()
        check(f"kubernetes/system:serviceaccount:{TEAM}:sue" in who, f"the coordinator knows who calls ({who})")
        self.submit(sue, "by-sue", LONG, self.nodes, TEAM)
        sue("wait", "by-sue", "-n", TEAM, "--for=running", "--timeout=120s", timeout=130)
        check(vic.json("get", "job", "by-sue", "-n", TEAM)["metadata"]["namespace"] == TEAM, "a viewer of the namespace sees the job")
        vic.refusal("logs", "by-sue", "-n", TEAM)
        vic.refusal("cancel", "by-sue", "-n", TEAM)
        sue.refusal("get", "job", "digits", "-n", "default")
        sue.refusal("nodes")
        check(sue.json("get", "job", "by-sue", "-n", TEAM)["spec"]["replicas"] == self.nodes, "a submitter sees the job")
        check(len(opal.json("get", "nodes")["items"]) == self.nodes, "an operator sees the nodes")
        node = next(iter(self.cluster.pods()))
        opal("cordon", node)
        opal("uncordon", node)
        opal.refusal("cancel", "by-sue", "-n", TEAM)
        sue("cancel", "by-sue", "-n", TEAM, "--wait", timeout=90)
        began = time.monotonic()
        self.kubectl("delete", "rolebinding", "sue", "-n", TEAM)
        wait_until(lambda: sue("get", "job", "by-sue", "-n", TEAM, may_fail=True) is None, 30, "a right that was taken away is gone")
        took = time.monotonic() - began
        return f"{who.split(',')[0]}; each may do what its role says and nothing else; a right that was taken away was gone after {took:.1f} s"

    def by_kubeconfig(self, name):
        """Everything comes from kubectl, the way to the coordinator, too."""
        if self.kubectl.command != ["kubectl"]:
            return self.by_token(name)
        user = self.user(name)
        user("config", "set-context", "prod", "--kubernetes", "--service-account", f"{TEAM}/{name}")
        return user

    def by_token(self, name):
        user = self.user(name)
        bundle = self.kubectl("get", "configmap", "muster-ca-bundle", "-n", NAMESPACE, "-o", r"jsonpath={.data.ca\.crt}")
        ca_file = self.folder / "ca.crt"
        ca_file.write_text(bundle)
        user(
            *("config", "set-context", "prod", "--url", user.url, "--ca-file", str(ca_file), "--"),
            *(*self.kubectl.command, "create", "token", name, "-n", TEAM, "--audience", AUDIENCE),
        )  # fmt: skip
        return user

    def user(self, name):
        folder = self.folder / name
        folder.mkdir()
        return Muster(self.options.muster, folder, self.forward)

    # What several steps ask

    def submit(self, user, name, arguments, nodes, namespace="default"):
        checkpoints = f"{self.options.checkpoints}/{self.folder.name}/{name}"
        gpus = self.options.gpus_per_node
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "MusterJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "replicas": nodes,
                "minReplicas": max(nodes - 1, 1),
                "maxReplicas": nodes,
                "procPerNode": max(gpus, 1),
                "gpusPerNode": gpus,
                "command": [self.options.python],
                "args": [SCRIPT, "--checkpoint-dir", checkpoints, *arguments],
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
                "workingDir": "/tmp",
                "restartPolicy": {"maxRestarts": 50, "window": "1h"},
                "stopGracePeriod": "10s",
                "scaleUpCooldown": "1s",
            },
        }, indent=2))  # fmt: skip
        user("submit", "-f", str(path))

    def status(self, job):
        return self.admin.json("get", "job", job)["status"]

    def trains(self, job, nodes, newer_than=None, namespace="default"):
        """Waits until so many nodes train in a newer generation, and returns the job's status then."""
        generation = newer_than["generation"] if newer_than else 0

        def so():
            found = self.admin.json("get", "job", job, "-n", namespace, may_fail=True)
            if not found:
                return None
            status = found["status"]
            check(status["phase"] not in ("Failed", "Cancelled", "Succeeded"), f"{job} goes on (it is {status['phase']}: {status.get('message')})")
            return (
                status["generation"] > generation
                and status["phase"] == "Running"
                and status["nodes"] == status["nodesRunning"] == nodes
                and rank_of(status, 0).get("lastStep") is not None
                and status
            )

        return wait_until(so, self.options.patience, f"{nodes} nodes train {job} in a generation after {generation}")

    def goes_on_untouched(self, before):
        """The job makes steps in the same generation with the same processes, and all nodes are ready."""

        def so():
            found = self.admin.json("get", "job", "story", may_fail=True)
            status = found and found["status"]
            if not status or status["phase"] != "Running" or status["nodesRunning"] != before["nodesRunning"]:
                return False
            check(status["generation"] == before["generation"], f"nothing was re-formed ({before['generation']} became {status['generation']})")
            return processes(status) == processes(before) and (status.get("lastStep") or 0) > before["lastStep"] + 10

        wait_until(so, 90, f"the same workers go on after step {before['lastStep']}")
        self.all_nodes_ready(60)

    def all_nodes_ready(self, timeout):
        def so():
            nodes = self.admin.json("get", "nodes", may_fail=True) or {"items": []}
            return sum(node["status"]["state"] == "Ready" for node in nodes["items"]) == self.nodes

        wait_until(so, timeout, f"{self.nodes} nodes are ready for Muster")

    def spare_node(self, status):
        """A node of the job without the coordinator."""
        home = self.cluster.coordinator()["spec"]["nodeName"]
        return next(rank["node"] for rank in status["ranks"] if rank["node"] != home)

    def workers_image(self):
        pod = next(iter(self.cluster.pods().values()))
        return pod["spec"]["containers"][0]["image"]

    def forget_checkpoints(self):
        folder = f"{self.options.checkpoints}/{self.folder.name}"
        for pod in self.cluster.pods().values():
            self.cluster.in_workers(name_of(pod), f"rm -rf {shlex.quote(folder)}")

    # Afterwards

    def show_evidence(self):
        for arguments in (
            ("get", "nodes", "-o", "wide"),
            ("-n", NAMESPACE, "get", "pods", "-o", "wide"),
            ("-n", NAMESPACE, "get", "events", "--sort-by=.lastTimestamp"),
            ("-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/name=muster-coordinator", "--tail=30", "--prefix"),
            ("-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/name=muster-agent", "-c", "agent", "--tail=20", "--prefix"),
        ):
            self.show("kubectl", self.kubectl, arguments)
        for arguments in (("nodes",), ("get", "jobs"), ("describe", "job", "story"), ("explain", "story")):
            self.show("muster", self.admin, arguments)

    def show(self, program, ask, arguments):
        """What it answers, or why it does not."""
        try:
            said = ask(*arguments)
        except NotSo as problem:
            said = problem
        print(f"\n$ {program} {' '.join(arguments)}\n{said}", file=sys.stderr)

    def cleaned_up(self, keep):
        """True if nothing is left that should not be."""
        self.forward.close()
        if not self.installed:
            return True
        if keep:
            print(f"\nkept: kubectl delete -k {self.overlay.folder} uninstalls it", file=sys.stderr)
            return True
        try:
            self.life.cleaned_up()
            self.overlay.delete(self.options.patience)
        except NotSo as problem:
            print(f"\nnot uninstalled: {problem}", file=sys.stderr)
            return False
        return True


def condition(node, name):
    return next((entry["status"] for entry in node["status"]["conditions"] if entry["type"] == name), None)


def uid(pod):
    return pod and pod["metadata"]["uid"]


def rank_of(status, rank):
    return next((entry for entry in status.get("ranks") or [] if entry["rank"] == rank), {})


def nodes_of(status):
    return {rank["node"] for rank in status["ranks"]}


def processes(status):
    return {(rank["rank"], rank["node"], rank["pid"]) for rank in status.get("ranks") or []}


def told(status):
    lanes = sorted({member["lane"] for member in status["members"]})
    return f"generation {status['generation']}, world {status['worldSize']}, lane {' and '.join(lanes)}"
