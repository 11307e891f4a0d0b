"""The part of the story about MusterJob objects with a template: their workers are in pods of their own, in a namespace of their own."""

import json
import re
import time

from cluster import NAMESPACE, SCRIPT, check, wait_until

TEAM = "muster-e2e-jobs"
WORDS = "muster-e2e-words"
LABEL = "muster.dev/job-name"


class Team:
    """A namespace with job objects whose workers are in pods of their own."""

    def __init__(self, story, namespace):
        self.story, self.kubectl, self.namespace = story, story.kubectl, namespace

    def create(self, *scripts):
        self("create", "namespace", self.namespace)
        files = [f"--from-file={script}" for script in (self.story.overlay.folder / "train.py", *scripts)]
        self("create", "configmap", "script", *files)

    def delete(self):
        self("delete", "mj", "--all", "--timeout=120s", may_fail=True, timeout=130)
        self("delete", "namespace", self.namespace, "--ignore-not-found", may_fail=True, timeout=120)

    def __call__(self, *arguments, **options):
        """kubectl in the namespace."""
        return self.kubectl("-n", self.namespace, *arguments, **options)

    def apply(self, name, arguments, script=SCRIPT, spec=None, pod=None, worker=None):
        """A job that trains on all nodes. `spec`, `pod` and `worker` change its spec, its template and the container of the workers."""
        story, options = self.story, self.story.options
        gpus, nodes = options.gpus_per_node, story.nodes
        container = {
            "name": "train",
            "image": story.workers_image(),
            "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "script", "mountPath": SCRIPT.rpartition("/")[0]}, {"name": "data", "mountPath": "/data"}],
        } | (worker or {})
        volumes = [{"name": "script", "configMap": {"name": "script"}}, {"name": "data", "emptyDir": {}}]
        document = {
            "replicas": nodes,
            "minReplicas": nodes - 1,
            "maxReplicas": nodes,
            "procPerNode": max(gpus, 1),
            "gpusPerNode": gpus,
            "command": [options.python],
            "args": [script, "--checkpoint-dir", f"/data/{name}", *arguments],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "workingDir": "/tmp",
            "restartPolicy": {"maxRestarts": 50, "window": "1h"},
            "stopGracePeriod": "5s",
            "scaleUpCooldown": "1s",
            "template": {"spec": {"containers": [container], "volumes": volumes} | (pod or {})},
        } | (spec or {})
        metadata = {"name": name, "namespace": self.namespace}
        self("apply", "-f", "-", stdin=json.dumps({"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": metadata, "spec": document}))

    def object(self, job):
        return self.kubectl.json("get", "mj", job, "-n", self.namespace)

    def status(self, job):
        return self.story.admin.json("get", "job", job, "-n", self.namespace)["status"]

    def incidents(self, job):
        return self.story.admin.json("explain", job, "-n", self.namespace)["incidents"]

    def trains(self, job, nodes, newer_than=None):
        return self.story.trains(job, nodes, newer_than, namespace=self.namespace)

    def kill(self, rank):
        self("exec", rank["node"].split(".")[0], "-c", "train", "--", "sh", "-c", f"kill -9 {rank['pid']}")

    def pod_objects(self, job):
        found = self.kubectl.objects("pods", "-n", self.namespace, "-l", f"{LABEL}={job}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pods(self, job):
        return sorted(pod["metadata"]["name"] for pod in self.pod_objects(job))


class Objects:
    def __init__(self, story):
        self.story, self.kubectl, self.team = story, story.kubectl, Team(story, TEAM)

    def run(self):
        """From the first pod to the last, also under the strictest security level of Kubernetes."""
        story = self.story
        began = time.monotonic()
        try:
            self.team.create()
            self.kubectl("label", "namespace", TEAM, "pod-security.kubernetes.io/enforce=restricted")
            self.team.apply("long", ("--epochs", "1000000", "--step-delay-ms", "100"))
            self.team.trains("long", story.nodes)
            said = [f"{story.nodes} pods train after {time.monotonic() - began:.1f} s"]
            for part in (self.kill_rank, self.delete_pod, self.scale, self.finish):
                began = time.monotonic()
                what = part()
                said.append(f"{what} {time.monotonic() - began:.1f} s")
            began = time.monotonic()
            self.team("delete", "mj", "long", "--timeout=120s", timeout=130)
            wait_until(lambda: not self.team.pods("long"), 120, "the pods are gone with their object")
            said.append(f"deleted with all its pods in {time.monotonic() - began:.1f} s")
            return "; ".join(said)
        finally:
            self.team.delete()

    def kill_rank(self):
        before = self.team.status("long")
        self.team.kill(before["ranks"][-1])
        pods = self.team.pods("long")
        self.team.trains("long", self.story.nodes, newer_than=before)
        check(self.team.pods("long") == pods, "no pod was made anew for that")
        return "a rank killed: all train again after"

    def delete_pod(self):
        before, pods = self.team.status("long"), self.team.pods("long")
        self.team("delete", "pod", pods[0], "--wait=false")
        self.team.trains("long", self.story.nodes, newer_than=before)
        check(pods[0] not in self.team.pods("long"), "another pod is in its place")
        cause = self.team.incidents("long")[-1]
        return f"a pod deleted: all train again (last {cause['cause']}) after"

    def scale(self):
        fewer = self.story.nodes - 1
        before = self.team.status("long")
        self.team("scale", "mj/long", f"--replicas={fewer}")
        self.team.trains("long", fewer, newer_than=before)
        wait_until(lambda: len(self.team.pods("long")) == fewer, 120, f"{fewer} pods are left")
        return f"scaled to {fewer} with as many pods in"

    def finish(self):
        self.team.apply("short", ("--epochs", "6", "--step-delay-ms", "20"))
        patience = self.story.options.patience
        self.team("wait", "mj/short", "--for=condition=Complete", f"--timeout={patience}s", timeout=patience + 10)
        done = lambda: all(pod["status"]["phase"] == "Succeeded" for pod in self.team.pod_objects("short"))  # noqa: E731
        wait_until(done, 60, "the pods of a job that is over end by themselves")
        logs = [self.team("logs", pod, "-c", "train") for pod in self.team.pods("short")]
        line = re.search(r"test accuracy ([\d.]+)", "".join(logs))
        check(line, "kubectl logs shows what rank 0 printed, also after the end")
        return f"another job to its end (accuracy {line[1]}, its pods Completed, their logs there) in"


def are_made(kubectl):
    """Whether the coordinator makes worker pods."""
    container = kubectl.json("get", "statefulset", "muster-coordinator", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0]
    return any(argument.startswith("--kubernetes-pods=") for argument in container.get("args", []))


class LastWords:
    """What kubectl describe pod says of a job that has failed. It needs Python in the workers' image, and no torch."""

    def __init__(self, story):
        self.story, self.team = story, Team(story, WORDS)

    def run(self):
        try:
            self.team.create()
            began = time.monotonic()
            program = {"framework": "plain", "procPerNode": 1, "gpusPerNode": 0, "command": ["python3"], "args": ["-c", "raise ValueError('no such data')"]}
            self.team.apply("wrong", (), spec=program | {"restartPolicy": {"maxRestarts": 1, "window": "1h"}})
            patience = self.story.options.patience
            self.team("wait", "mj/wrong", "--for=condition=Failed", f"--timeout={patience}s", timeout=patience + 10)
            over = lambda: all(pod["status"]["phase"] == "Succeeded" for pod in self.team.pod_objects("wrong"))  # noqa: E731
            wait_until(over, 60, "the pods of a job that is over end by themselves")
            took, pods = time.monotonic() - began, self.team.pods("wrong")
            for pod in pods:
                said = self.team("describe", "pod", pod)
                check(f"job {WORDS}/wrong has failed: " in said, f"kubectl describe pod {pod} says that the job has failed ({said})")
                check("ValueError: no such data" in said, f"and the culprit's words ({said})")
            return f"failed after {took:.1f} s, and kubectl describe says why for each of {len(pods)} pods"
        finally:
            self.team.delete()
