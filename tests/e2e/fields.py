"""The part of the story about fields of a MusterJob object that say more than which program runs: roles, suspend, a time to live, and what
protects its pods."""

import json
import time

from cluster import check, wait_until
from objects import Team

SPACE = "muster-e2e-fields"
JOB = "guarded"
FOR_EVER = ("--epochs", "1000000", "--step-delay-ms", "100")
TTL = 5
# A chief that is done when its workers and its server have met it; the server never ends by itself.
ROLES = """
import json, os, socket, time
members, role = json.loads(os.environ["MUSTER_MEMBERS"]), os.environ["MUSTER_ROLE"]
print("role", role, os.environ["MUSTER_ROLE_INDEX"], "sees", json.dumps({name: len(of) for name, of in sorted(members.items())}), flush=True)
address = lambda of: members[of][0].rsplit(":", 1)
server = socket.create_server(("", int(address(role)[1])))
if role == "chief":
    for _ in range(2):
        server.accept()[0].close()
    print("met by two", flush=True)
else:
    host, port = address("chief")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            break
        except OSError:
            time.sleep(0.1)
if role == "ps":
    while True:
        server.accept()[0].close()
"""


class Fields:
    def __init__(self, story):
        self.story, self.kubectl, self.team = story, story.kubectl, Team(story, SPACE)

    def run(self):
        said = []
        try:
            self.team.create()
            for part in (self.guards, self.suspend, self.live_for_a_time, self.roles):
                began = time.monotonic()
                said.append(f"{part()} ({time.monotonic() - began:.1f} s)")
            return "; ".join(said)
        finally:
            self.team.delete()

    def guards(self):
        """The job waits for both objects, and they come back if somebody deletes one."""
        nodes = self.story.nodes
        self.team.apply(JOB, FOR_EVER, spec={"networkPolicy": "Job", "disruptionBudget": "Minimum"})
        self.team.trains(JOB, nodes)
        policy = self.only("networkpolicies")
        label = {"muster.dev/job-uid": self.team.object(JOB)["metadata"]["uid"]}
        check(policy["spec"]["podSelector"]["matchLabels"] == label, f"it selects the job's pods ({policy['spec']})")
        check(policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": label}}]}], f"only they may connect ({policy['spec']})")
        counted = lambda: self.only("poddisruptionbudgets").get("status", {}).get("currentHealthy") == nodes  # noqa: E731
        wait_until(counted, 60, f"the budget counts {nodes} healthy pods")
        check(self.only("poddisruptionbudgets")["spec"]["minAvailable"] == nodes - 1, "it leaves minReplicas")
        began = time.monotonic()
        self.team("delete", "networkpolicy", policy["metadata"]["name"])
        again = lambda: [other for other in self.all("networkpolicies") if other["metadata"]["uid"] != policy["metadata"]["uid"]]  # noqa: E731
        wait_until(again, 60, "a deleted policy is made anew")
        took = time.monotonic() - began
        self.patch({"networkPolicy": "None"})
        wait_until(lambda: not self.all("networkpolicies"), 60, "it goes when nobody asks for it")
        return f"a policy and a budget protect {nodes} pods; a deleted policy was back after {took:.1f} s"

    def suspend(self):
        """Suspended, a job holds no pod and no budget. Resumed, it loads what it saved."""
        before = self.team.status(JOB)
        self.patch({"suspend": True})
        wait_until(lambda: not self.team.pods(JOB) and self.holds("Suspended"), 120, "a suspended job has no pod, and says so")
        wait_until(lambda: not self.all("poddisruptionbudgets"), 60, "a suspended job has no budget")
        began = time.monotonic()
        self.patch({"suspend": False})
        self.team.trains(JOB, self.story.nodes, newer_than=before)
        check(not self.holds("Suspended"), "it is not suspended any more")
        took = time.monotonic() - began
        self.team("delete", "mj", JOB, "--timeout=120s", timeout=130)
        wait_until(lambda: not self.all("poddisruptionbudgets") and not self.team.pods(JOB), 60, "pods and budget go with their object")
        return f"suspended without pods; resumed, {self.story.nodes} pods train after {took:.1f} s"

    def live_for_a_time(self):
        self.team.apply("brief", ("--epochs", "2"), spec={"ttlSecondsAfterFinished": TTL})
        over = lambda: self.holds("Complete", "brief")  # noqa: E731
        wait_until(over, self.story.options.patience, "the job is over")
        began = time.monotonic()
        gone = lambda: not self.team("get", "mj", "brief", "--ignore-not-found", "-o", "name").strip()  # noqa: E731
        wait_until(gone, TTL + 60, "an object does not outlive its time")
        took = time.monotonic() - began
        check(took > TTL - 2, f"it lives so long ({took:.1f} s)")
        wait_until(lambda: not self.team.pods("brief"), 60, "its pods go with it")
        return f"with ttlSecondsAfterFinished: {TTL} the object went {took:.1f} s after its end"

    def roles(self):
        roles = [{"name": "chief"}, {"name": "worker", "replicas": self.story.nodes - 2}, {"name": "ps", "service": True}]
        rules = [{"when": "success", "of": "first", "then": "succeed"}]
        spec = {"framework": "plain", "roles": roles, "rules": rules, "procPerNode": 1, "replicas": None, "minReplicas": None, "maxReplicas": None}
        self.team.apply("roles", (), spec=spec | {"args": ["-c", ROLES]})
        patience = self.story.options.patience
        self.team("wait", "mj/roles", "--for=condition=Complete", f"--timeout={patience}s", timeout=patience + 10)
        # The container's log has the lines of its ranks.
        logs = "".join(self.team("logs", pod, "-c", "train") for pod in self.team.pods("roles"))
        seen = json.dumps({"chief": 1, "ps": 1, "worker": self.story.nodes - 2})
        for role in ("chief", "worker", "ps"):
            check(f"role {role} 0 sees {seen}" in logs, f"each pod knows its role and all members ({logs})")
        check("met by two" in logs, f"they reach each other ({logs})")
        return "a chief, a worker and a server, each in a pod, met; the chief's success was the job's"

    # What several parts ask

    def all(self, kind):
        return self.kubectl.objects(kind, "-n", SPACE)

    def only(self, kind):
        found = self.all(kind)
        check(len(found) == 1, f"there is one of the {kind} ({len(found)})")
        return found[0]

    def patch(self, spec):
        self.team("patch", "mj", JOB, "--type=merge", "-p", json.dumps({"spec": spec}))

    def holds(self, condition, job=JOB):
        found = self.team.object(job).get("status", {}).get("conditions", [])
        return any(entry["type"] == condition and entry["status"] == "True" for entry in found)
