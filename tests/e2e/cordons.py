"""The part of the story about cordons on Node objects: what kubectl sees of them, who may end them, and what the coordinator may not write."""

import json
import time

from cluster import COORDINATOR_ACCOUNT, NAMESPACE, check, wait_until

POLICY = "muster-coordinator-nodes"
OURS = "muster.dev/"
# One job's failures never accuse a node, and two failures make a job leave it.
JOBS = ("storm-one", "storm-two")
# A job accuses a node once it has trained elsewhere for a minute, or for twice as long as it did there.
PROOF = 60

# What the coordinator must not write, whatever its rights allow: the object or its status, the change, and what the policy says.
WRONG = (
    ("", {"metadata": {"labels": {"muster.dev/managed": "true"}}}, "changes no labels"),
    ("", {"metadata": {"annotations": {"example.org/mine": "yes"}}}, "changes no annotations"),
    ("", {"spec": {"taints": [{"key": "example.org/mine", "effect": "NoExecute"}]}}, "changes nothing in spec"),
    ("status", {"status": {"capacity": {"nvidia.com/gpu": "99"}}}, "changes nothing in status"),
    ("status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "changes no conditions"),
)
RIGHT = (
    ("", {"metadata": {"annotations": {"muster.dev/cordoned-by": "muster"}}, "spec": {"unschedulable": True}}),
    ("status", {"status": {"conditions": [{"type": "MusterGPUHealthy", "status": "True", "reason": "Test"}]}}),
)


class Cordons:
    def __init__(self, story):
        self.story, self.kubectl, self.admin = story, story.kubectl, story.admin
        self.node = sorted(story.cluster.pods())[-1]

    def run(self):
        try:
            return "; ".join(part() for part in (self.policy, self.of_a_person, self.of_two_persons, self.storm, self.hold_off))
        finally:
            for job in JOBS:
                self.admin("cancel", job, may_fail=True)
            for node in self.story.cluster.pods():
                self.admin("uncordon", node, may_fail=True)
                self.kubectl("uncordon", node, may_fail=True)

    def policy(self):
        def judged():
            policy = self.kubectl.json("get", "validatingadmissionpolicy", POLICY)
            status = policy.get("status", {})
            return status.get("observedGeneration") == policy["metadata"]["generation"] and status

        status = wait_until(judged, 30, "the API server has checked the policy's expressions")
        check(status["typeChecking"] == {}, f"the policy's expressions have no warnings ({status['typeChecking']})")
        for subresource, change, sentence in WRONG:
            said = self.as_coordinator(self.kubectl.refusal, subresource, change)
            check(POLICY in said and sentence in said, f"the policy refuses {change} ({said})")
        for subresource, change in RIGHT:
            self.as_coordinator(self.kubectl, subresource, change)
        return f"the policy has no warnings, and refuses the coordinator {len(WRONG)} of {len(WRONG)} wrong changes"

    def as_coordinator(self, call, subresource, change):
        """A change of the Node object under the coordinator's name, up to the point where it would be stored."""
        where = [f"--subresource={subresource}"] if subresource else []
        metadata = {"name": self.node} | change.get("metadata", {})
        document = {"apiVersion": "v1", "kind": "Node"} | change | {"metadata": metadata}
        # Unlike kubectl patch, this reads nothing first.
        how = ("--server-side", "--force-conflicts", "--field-manager=muster-coordinator", "--dry-run=server")
        return call("apply", *how, *where, f"--as={COORDINATOR_ACCOUNT}", "-f", "-", stdin=json.dumps(document))

    def of_a_person(self):
        told, began = self.told("Cordoned"), time.monotonic()
        self.admin("cordon", self.node, "--reason", "a fan fails")
        notes = self.cordoned("a cordon of a person stands on the object")
        took = time.monotonic() - began
        check("ann" in notes["cordoned-by"] and notes["cordoned-reason"] == "a fan fails" and "cordoned-at" in notes, f"it says who, when and why ({notes})")
        self.tells_once("Cordoned", told)
        self.admin("uncordon", self.node)
        self.clean("muster uncordon takes away what Muster has set")
        return f"muster cordon was on the object after {took:.1f} s"

    def of_two_persons(self):
        """Who has cordoned with kubectl keeps that cordon."""
        self.kubectl("cordon", self.node)
        wait_until(lambda: self.seen()["spec"].get("excluded"), 30, "Muster knows what kubectl cordon has set")
        self.admin("cordon", self.node, "--reason", "mine, too")
        notes = self.cordoned("Muster's cordon is beside it")
        check(notes.get("was-unschedulable") == "true", f"it notes that the node was unschedulable before ({notes})")
        self.admin("uncordon", self.node)
        wait_until(lambda: not self.notes(), 30, "Muster's annotations are gone")
        check(self.object()["spec"].get("unschedulable"), "the cordon of kubectl stays")
        self.kubectl("uncordon", self.node)
        self.clean("and ends with kubectl uncordon")
        return "muster uncordon left a cordon of kubectl as it was"

    def storm(self):
        """Two jobs fail twice on the node, and train elsewhere."""
        told, began = self.told("Cordoned"), time.monotonic()
        for job in JOBS:
            self.fail_twice(job)
        notes = self.cordoned("Muster has cordoned the node where two jobs failed", 2 * PROOF + self.story.options.patience)
        check(notes["cordoned-by"] == "muster" and notes["cordoned-reason"].startswith("restart storm"), f"it says who and why ({notes})")
        check(all(job in notes["cordoned-job"] for job in JOBS), f"it names the jobs ({notes['cordoned-job']})")
        said = wait_until(lambda: (now := self.condition()) and now["status"] == "False" and now, 30, "MusterGPUHealthy is False")
        check(said["reason"] == "RestartStorm", f"the condition says why ({said})")
        self.tells_once("Cordoned", told)
        return f"{notes['cordoned-reason']}: cordoned {time.monotonic() - began:.0f} s after the first of two jobs was submitted"

    def fail_twice(self, job):
        others = [node for node in self.story.cluster.pods() if node != self.node]
        for node in others:
            self.admin("cordon", node, "--reason", "the next job goes elsewhere")
        self.story.submit_long(job, 1)
        before = self.story.trains(job, 1)
        for node in others:
            self.admin("uncordon", node)
        for _ in range(2):
            rank = before["ranks"][0]
            check(rank["node"] == self.node, f"{job} is on {self.node} until it has failed there twice ({rank['node']})")
            self.story.kill(rank)
            before = self.story.trains(job, 1, newer_than=before)
        check(before["ranks"][0]["node"] != self.node, f"{job} left the node on which it had failed twice")

    def hold_off(self):
        told, began = self.told("Uncordoned"), time.monotonic()
        self.kubectl("uncordon", self.node)
        self.clean("kubectl uncordon ends Muster's cordon")
        took = time.monotonic() - began
        self.tells_once("Uncordoned", told)
        wait_until(lambda: self.seen()["spec"].get("cordon") is None, 30, "the cordon is over for Muster, too")
        wait_until(lambda: "HoldOff" in self.admin("describe", "node", self.node), 30, "Muster holds off, and says so")
        wait_until(lambda: self.condition()["status"] == "True", 30, "MusterGPUHealthy is True again")
        return f"kubectl uncordon ended it, everywhere after {took:.1f} s, and Muster holds off"

    # What several parts ask

    def object(self):
        return self.kubectl.json("get", "node", self.node)

    def notes(self):
        annotations = self.object()["metadata"].get("annotations", {})
        return {key.removeprefix(OURS): value for key, value in annotations.items() if key.startswith(OURS)}

    def condition(self):
        return next((entry for entry in self.object()["status"]["conditions"] if entry["type"] == "MusterGPUHealthy"), None)

    def seen(self):
        """The node as Muster sees it."""
        return self.admin.json("get", "node", self.node)

    def cordoned(self, what, timeout=30):
        def so():
            notes = self.notes()
            return "cordoned-by" in notes and self.object()["spec"].get("unschedulable") and notes

        return wait_until(so, timeout, what)

    def clean(self, what):
        wait_until(lambda: not self.notes() and not self.object()["spec"].get("unschedulable"), 30, what)

    def told(self, reason):
        fields = f"involvedObject.kind=Node,involvedObject.name={self.node},reason={reason}"
        return {event["metadata"]["uid"] for event in self.kubectl.objects("events", "-n", "default", f"--field-selector={fields}")}

    def tells_once(self, reason, before):
        new = wait_until(lambda: self.told(reason) - before, 30, f"there is an event {reason}")
        check(len(new) == 1, f"there is one event {reason} ({len(new)})")


def are_written(kubectl):
    """Whether the coordinator writes cordons on Node objects."""
    container = kubectl.json("get", "statefulset", "muster-coordinator", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0]
    return "--kubernetes-cordon=on" in container.get("args", [])
