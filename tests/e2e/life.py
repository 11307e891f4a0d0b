"""What happens to worker pods in a cluster, one event after another, with a job on all nodes before and after each.

Of each event it is checked what became of the job, whom Muster blames, and what people are told where they look: the status of the object.
"""

import datetime
import json
import pathlib
import time

from cluster import NAMESPACE, NotSo, NotTested, check, name_of, run, wait_until
from objects import LABEL, Team

SPACE = "muster-e2e-life"
JOB = "life"
HUNGRY = pathlib.Path(__file__).with_name("hungry.py")
FOR_EVER = ("--epochs", "1000000", "--step-delay-ms", "100")
# Ranks, launcher and page cache need half of it.
MEMORY = "1536Mi"
# How long the API server is away, and when in that time a rank is killed.
AWAY, KILLED_AFTER = 20, 8


class Life:
    def __init__(self, story):
        self.story, self.kubectl, self.team = story, story.kubectl, Team(story, SPACE)
        self.made = False

    def steps(self):
        events = [
            ("is deleted", self.deleted),
            ("of a job that cannot do without is deleted", self.deleted_at_minimum),
            ("is evicted", self.evicted),
            ("is evicted under a disruption budget", self.evicted_with_budget),
            ("is drained with its node", self.drained),
            ("is preempted", self.preempted),
            ("has a rank without memory", self.out_of_memory),
            ("loses its node's power", self.power_cut),
            ("and the API server away", self.api_away),
            ("and another coordinator", self.coordinator_deleted),
            ("and another kubelet", self.kubelet_restarted),
            ("whose image is missing", self.image_missing),
            ("beyond a quota", self.beyond_quota),
            ("that a policy refuses", self.refused_by_policy),
            ("that the kubelet refuses", self.refused_by_kubelet),
        ]
        return [(f"a worker pod {name}", event) for name, event in events] + [("worker pods end with their namespace", self.end)]

    # The pod goes

    def deleted(self):
        victim = self.victim()
        return self.goes_on(lambda: self.team("delete", "pod", victim, "--wait=false"), "NodeLeaving")

    def deleted_at_minimum(self):
        """Most jobs have no fewer nodes than they want. A drain must not cost them a restart of their budget."""
        job, nodes = "rigid", self.story.nodes - 1
        self.before()
        self.team.apply(job, FOR_EVER, spec={"replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes})
        before = self.team.trains(job, nodes)
        began = time.monotonic()
        self.team("delete", "pod", self.team.pods(job)[0], "--wait=false")
        self.team.trains(job, nodes, newer_than=before)
        took = time.monotonic() - began
        incident = self.incidents_after(before, job)[0]
        check((incident["cause"], incident["charged"]) == ("NodeLeaving", "nobody"), f"the job is not charged ({incident})")
        self.team("delete", "mj", job, "--timeout=120s", timeout=130)
        return f"all nodes train after {took:.1f} s: {incident['message']}"

    def evicted(self):
        victim = self.victim()
        return self.goes_on(lambda: self.evict(victim), "NodeLeaving")

    def evicted_with_budget(self):
        victim, budget = self.victim(), {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": JOB}}
        before = self.team.status(JOB)
        budget["spec"] = {"maxUnavailable": 0, "selector": {"matchLabels": {LABEL: JOB}}}
        self.team("apply", "-f", "-", stdin=json.dumps(budget))
        self.budget_allows(0)
        refused = self.kubectl.refusal(*self.eviction(victim), stdin=self.eviction_of(victim))
        check("disruption budget" in refused, f"the eviction is refused ({refused})")
        check(self.team.status(JOB)["generation"] == before["generation"], "the job did not notice")
        budget["spec"]["maxUnavailable"] = 1
        self.team("apply", "-f", "-", stdin=json.dumps(budget))
        self.budget_allows(1)
        try:
            return f"with none to spare it is refused; with one: {self.goes_on(lambda: self.evict(victim), 'NodeLeaving')}"
        finally:
            self.team("delete", "pdb", JOB)

    def budget_allows(self, count):
        """The disruption controller finds the size of the job by its scale subresource."""

        def so():
            found = self.kubectl.json("get", "pdb", JOB, "-n", SPACE)
            status = found.get("status", {})
            seen = status.get("observedGeneration") == found["metadata"]["generation"] and status.get("currentHealthy") == self.story.nodes
            return seen and status.get("disruptionsAllowed") == count

        wait_until(so, 60, f"the disruption budget allows {count}")

    def evict(self, pod):
        self.kubectl(*self.eviction(pod), stdin=self.eviction_of(pod))

    def eviction(self, pod):
        return "create", "--raw", f"/api/v1/namespaces/{SPACE}/pods/{pod}/eviction", "-f", "-"

    def eviction_of(self, pod):
        return json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": SPACE}})

    def drained(self):
        node = self.host()
        try:
            said = self.goes_on(lambda: self.drain(node), "NodeLeaving")
            left = [pod for pod in self.team.pod_objects(JOB) if pod["spec"].get("nodeName") == node]
            check(not left, f"no pod of the job is on {node}")
        finally:
            self.kubectl("uncordon", node)
        return said

    def drain(self, node):
        self.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", timeout=130)

    def preempted(self):
        node = self.host()
        victims = [pod for pod in self.team.pod_objects(JOB) if pod["spec"]["nodeName"] == node]
        self.kubectl("create", "priorityclass", SPACE, "--value=1000", may_fail=True)
        container = {"name": "pause", "image": self.story.workers_image(), "imagePullPolicy": "IfNotPresent", "command": ["sleep", "1000"]}
        container["resources"] = {"requests": {"cpu": f"{self.room_without(victims, node)}m"}}
        spec = {"priorityClassName": SPACE, "nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
        spec["terminationGracePeriodSeconds"] = 0
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "important"}, "spec": spec}
        try:
            said = self.goes_on(lambda: self.team("apply", "-f", "-", stdin=json.dumps(pod)), "NodeLeaving")
            told = self.kubectl.objects("events", "-n", SPACE, "--field-selector=reason=Preempted")
            check(told, "the scheduler says that it has preempted a pod")
            return said
        finally:
            self.team("delete", "pod", "important", "--ignore-not-found", "--wait=false")
            self.kubectl("delete", "priorityclass", SPACE, "--ignore-not-found")

    def room_without(self, victims, node):
        """The processor time, in thousandths, that the node has for a pod if these go."""
        gone = {name_of(pod) for pod in victims}
        there = self.kubectl.objects("pods", "-A", f"--field-selector=spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed")
        taken = sum(requested(pod) for pod in there if name_of(pod) not in gone)
        return thousandths(self.kubectl.json("get", "node", node)["status"]["allocatable"]["cpu"]) - taken

    # Its container or its node

    def out_of_memory(self):
        before = self.before()
        victim = before["ranks"][-1]
        pod = victim["node"].split(".")[0]
        # Where the kernel kills the whole container (cgroup v2), it comes back in place, and the member is lost with it.
        said = self.goes_on(lambda: self.signal(victim, "USR1"), "WorkerKilled", "WorkerFailed", "NodeLost", "PeersLost")
        check(pod in self.team.pods(JOB), "the pod stayed")
        return said

    def signal(self, rank, name):
        self.team("exec", rank["node"].split(".")[0], "-c", "train", "--", "sh", "-c", f"kill -{name} {rank['pid']}")

    def power_cut(self):
        options = self.story.options
        if not options.node_down:
            raise NotTested("without --node-down and --node-up")
        before, node = self.before(), self.host()
        lost = [name_of(pod) for pod in self.team.pod_objects(JOB) if pod["spec"]["nodeName"] == node]
        try:
            said = self.goes_on(lambda: run(options.node_down, node), "NodeLost")
        finally:
            run(options.node_up, node)
        began = time.monotonic()
        wait_until(lambda: len(self.team.pods(JOB)) == self.story.nodes, self.story.options.patience, "there are as many pods as wanted, and no more")
        took = time.monotonic() - began
        self.all_train()
        kept = [pod for pod in lost if pod in self.team.pods(JOB)]
        check(self.team.status(JOB)["generation"] > before["generation"], "it is another generation")
        return f"{said}; after the node's return one pod too many was gone after {took:.1f} s (the old one was {'kept' if kept else 'deleted'})"

    # Others are away

    def api_away(self):
        options = self.story.options
        if not options.api_down:
            raise NotTested("without --api-down and --api-up")
        before = self.before()
        victim = before["ranks"][-1]
        # The order to kill is in the pod before nobody can give it any more.
        self.team("exec", victim["node"].split(".")[0], "-c", "train", "--", "sh", "-c", f"(sleep {KILLED_AFTER}; kill -9 {victim['pid']}) >/dev/null 2>&1 &")
        began = time.time()
        run(options.api_down)
        try:
            # Nothing is waited for: so long is the outage.
            time.sleep(AWAY)
        finally:
            run(options.api_up)
        back = time.time()
        self.story.forward.close()
        status = self.team.trains(JOB, self.story.nodes, newer_than=before)
        incident, *others = self.incidents_after(before)
        # A node that finds the coordinator a second after the others joins afterwards. Nothing else may happen.
        check([other["cause"] for other in others] in ([], ["NodeJoined"]), f"nothing else broke the job ({others})")
        check(status["generation"] == before["generation"] + 1 + len(others), f"there is no other generation ({before['generation']} became {status['generation']})")
        check(incident["cause"] == "WorkerKilled", f"the killed rank is the cause ({incident})")
        at = when(incident["at"])
        check(began < at < back and incident["totalMs"], f"the failure was noticed while the API server was away ({incident})")
        again = at + incident["totalMs"] / 1000
        during = "while" if again < back else f"{again - back:.1f} s after"
        wait_until(lambda: self.team.object(JOB)["status"].get("jobGeneration") == status["generation"], 60, "the object's status follows")
        return f"away for {back - began:.0f} s; a rank killed meanwhile: it trained again {incident['totalMs'] / 1000:.1f} s later, {during} the API server was away"

    def coordinator_deleted(self):
        pod = self.story.cluster.coordinator()
        if not self.story.cluster.jobs_outlive(pod):
            raise NotTested("its volume would not outlive the pod")
        before, began = self.before(), time.monotonic()
        self.kubectl("-n", NAMESPACE, "delete", "pod", name_of(pod), timeout=120)
        self.story.forward.close()
        self.story.cluster.rolled_out("statefulset/muster-coordinator", timeout=self.story.options.patience)
        return self.untouched(before, began)

    def kubelet_restarted(self):
        if not self.story.options.kubelet_restart:
            raise NotTested("without --kubelet-restart")
        before, node, began = self.before(), self.host(), time.monotonic()
        restarts = self.restarts()
        run(self.story.options.kubelet_restart, node)
        ready = "{.status.conditions[?(@.type=='Ready')].lastHeartbeatTime}"
        beat = self.kubectl("get", "node", node, "-o", f"jsonpath={ready}")
        wait_until(lambda: self.kubectl("get", "node", node, "-o", f"jsonpath={ready}") != beat, 120, f"the kubelet of {node} reports again")
        said = self.untouched(before, began)
        check(self.restarts() == restarts, "no container was started again")
        return said

    def restarts(self):
        pods = self.team.pod_objects(JOB)
        return {name_of(pod): sum(entry["restartCount"] for entry in pod["status"]["containerStatuses"]) for pod in pods}

    # The pods cannot be had

    def image_missing(self):
        worker = {"image": f"{self.story.workers_image().rpartition(':')[0]}:no-such-tag"}
        return self.waits("image-missing", "Image", worker=worker)

    def beyond_quota(self):
        fewer = self.story.nodes - 1
        self.before()
        # The first job's pods count, too.
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": str(self.story.nodes + fewer)}}}
        self.team("apply", "-f", "-", stdin=json.dumps(quota))
        began = time.monotonic()
        try:
            self.team.apply("quota", FOR_EVER)
            status = self.team.trains("quota", fewer)
            small = time.monotonic() - began
            said = self.message("quota", "exceeded quota")
        finally:
            self.team("delete", "resourcequota", "few")
        began = time.monotonic()
        self.team.trains("quota", self.story.nodes, newer_than=status)
        took = time.monotonic() - began
        check("quota" not in self.team.object("quota")["status"]["message"], "the message is gone with its cause")
        self.team("delete", "mj", "quota", "--timeout=120s", timeout=130)
        return f"{fewer} of {self.story.nodes} nodes train after {small:.1f} s, and the status says: {shortened(said)}; without the quota all train after {took:.1f} s"

    def refused_by_policy(self):
        self.before()
        label = "pod-security.kubernetes.io/enforce"
        self.kubectl("label", "namespace", SPACE, f"{label}=restricted")
        try:
            return self.waits("refused", "violates PodSecurity", pod={"hostNetwork": True})
        finally:
            self.kubectl("label", "namespace", SPACE, f"{label}-")

    def refused_by_kubelet(self):
        """A pod that names its node passes by the scheduler, and the kubelet sees that the node is not the one that it selects."""
        return self.waits("unfit", "NodeAffinity", pod={"nodeName": self.host(), "nodeSelector": {"kubernetes.io/hostname": "elsewhere"}})

    def waits(self, job, word, **parts):
        """A job whose pods cannot be had says why, and harms nobody."""
        before, began = self.before(), time.monotonic()
        self.team.apply(job, FOR_EVER, **parts)
        said = self.message(job, word)
        took = time.monotonic() - began
        check(said.index(word) < 100, f"it says so first ({said})")
        status = self.team.object(job)["status"]
        holds = [entry["type"] for entry in status["conditions"] if entry["status"] == "True"]
        check("BelowMinimum" in holds, f"the object has the condition BelowMinimum ({holds})")
        self.team("delete", "mj", job, "--timeout=120s", timeout=130)
        wait_until(lambda: not self.team.pods(job), 60, "its pods are gone with it")
        check(self.team.status(JOB)["generation"] == before["generation"], "the other job did not notice")
        return f"after {took:.1f} s the status says: {shortened(said)}"

    def message(self, job, word):
        def so():
            message = self.team.object(job).get("status", {}).get("message", "")
            return word in message and message

        try:
            return wait_until(so, 60, f"the status of {job} says {word}")
        except NotSo as problem:
            raise NotSo(f"{problem}; it says: {self.team.object(job).get('status', {}).get('message')}") from None

    def end(self):
        if not self.made:
            raise NotTested("no other step had any")
        began = time.monotonic()
        self.kubectl("delete", "namespace", SPACE, "--timeout=120s", timeout=130)
        self.made = False
        return f"nothing is left after {time.monotonic() - began:.1f} s"

    def cleaned_up(self):
        if self.made:
            self.team.delete()

    # What several events ask

    def before(self):
        """The job's status, with all its nodes training."""
        if not self.made:
            self.made = True
            self.team.create(HUNGRY)
            worker = {"resources": {"limits": {"memory": MEMORY}, "requests": {"cpu": "100m", "memory": "256Mi"}}}
            spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            spread["labelSelector"] = {"matchLabels": {LABEL: JOB}}
            self.team.apply(JOB, FOR_EVER, script="/muster-e2e/hungry.py", worker=worker, pod={"topologySpreadConstraints": [spread]})
        return self.all_train()

    def all_train(self):
        return self.team.trains(JOB, self.story.nodes)

    def victim(self):
        return self.before()["ranks"][-1]["node"].split(".")[0]

    def host(self):
        """A node with a pod of the job, and without the coordinator."""
        self.before()
        home = self.story.cluster.coordinator()["spec"]["nodeName"]
        return next(pod["spec"]["nodeName"] for pod in self.team.pod_objects(JOB) if pod["spec"]["nodeName"] != home)

    def goes_on(self, event, *causes):
        """Lets it happen, and waits until all nodes train again. Nobody but the job may be charged, and only for what its ranks did."""
        before, began = self.before(), time.monotonic()
        event()
        self.team.trains(JOB, self.story.nodes, newer_than=before)
        took = time.monotonic() - began
        new = self.incidents_after(before)
        check(new[0]["cause"] in causes, f"the cause is {' or '.join(causes)} ({new[0]['cause']}: {new[0]['message']})")
        charged = "job" if new[0]["cause"].startswith("Worker") else ("nobody", "node")
        check(new[0]["charged"] in charged, f"who is charged: {charged} ({new[0]['charged']})")
        others = [incident for incident in new[1:] if incident["charged"] == "job"]
        check(not others, f"the job is charged for nothing else ({others})")
        self.names_the_cause(new[0])
        told = ", ".join(f"{incident['cause']} (charged to {incident['charged']})" for incident in new)
        return f"all nodes train after {took:.1f} s: {told}: {new[0]['message']}"

    def names_the_cause(self, incident):
        """The object's status has the incident, too."""
        wait_until(lambda: incident["message"] in json.dumps(self.team.object(JOB)["status"].get("incidents", [])), 60, "the status tells of it")

    def incidents_after(self, before, job=JOB):
        return [incident for incident in self.team.incidents(job) if incident["fromGeneration"] >= before["generation"]]

    def untouched(self, before, began):
        def so():
            found = self.story.admin.json("get", "job", JOB, "-n", SPACE, may_fail=True)
            status = found and found["status"]
            if not status or status["phase"] != "Running":
                return False
            check(status["generation"] == before["generation"], f"nothing was re-formed ({before['generation']} became {status['generation']})")
            return (status.get("lastStep") or 0) > before["lastStep"] + 10

        wait_until(so, 90, f"the same workers go on after step {before['lastStep']}")
        return f"same generation and workers, status right after {time.monotonic() - began:.1f} s"


def shortened(text):
    return text if len(text) <= 160 else f"{text[:160]}..."


def requested(pod):
    """The processor time that the scheduler counts for a pod, in thousandths."""
    first = [one for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy") != "Always"]
    beside = [one for one in pod["spec"].get("initContainers", []) if one.get("restartPolicy") == "Always"]
    of = lambda one: thousandths(one.get("resources", {}).get("requests", {}).get("cpu", "0"))  # noqa: E731
    return max([sum(map(of, [*pod["spec"]["containers"], *beside])), *map(of, first)])


def thousandths(quantity):
    return int(quantity[:-1]) if quantity.endswith("m") else int(float(quantity) * 1000)


def when(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
