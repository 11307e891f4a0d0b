"""The part of the story about MusterJob objects with a template: their workers are in pods of their own, in a namespace of their own."""

import json
import re
import time

from cluster import NAMESPACE, SCRIPT, check, wait_until

TEAM = "muster-e2e-jobs"
LABEL = "muster.dev/job-name"


class Objects:
    def __init__(self, story):
        self.story, self.kubectl = story, story.kubectl

    def run(self):
        """From the first pod to the last, also under the strictest security level of Kubernetes."""
        story = self.story
        began = time.monotonic()
        try:
            self.kubectl("create", "namespace", TEAM)
            self.kubectl("label", "namespace", TEAM, "pod-security.kubernetes.io/enforce=restricted")
            script = str(story.overlay.folder / "train.py")
            self.kubectl("create", "configmap", "script", "-n", TEAM, f"--from-file={script}")
            self.apply("long", ("--epochs", "1000000", "--step-delay-ms", "100"))
            self.trains("long", story.nodes)
            said = [f"{story.nodes} pods train after {time.monotonic() - began:.1f} s"]
            for part in (self.kill_rank, self.delete_pod, self.scale, self.finish):
                began = time.monotonic()
                what = part()
                said.append(f"{what} {time.monotonic() - began:.1f} s")
            began = time.monotonic()
            self.kubectl("delete", "mj", "long", "-n", TEAM, "--timeout=120s", timeout=130)
            wait_until(lambda: not self.pods("long"), 120, "the pods are gone with their object")
            said.append(f"deleted with all its pods in {time.monotonic() - began:.1f} s")
            return "; ".join(said)
        finally:
            self.kubectl("delete", "mj", "--all", "-n", TEAM, "--timeout=120s", may_fail=True, timeout=130)
            self.kubectl("delete", "namespace", TEAM, "--ignore-not-found", may_fail=True, timeout=120)

    def kill_rank(self):
        before = self.status("long")
        victim = before["ranks"][-1]
        pod = victim["node"].split(".")[0]
        self.kubectl("-n", TEAM, "exec", pod, "-c", "train", "--", "sh", "-c", f"kill -9 {victim['pid']}")
        pods = self.pods("long")
        self.trains("long", self.story.nodes, newer_than=before)
        check(self.pods("long") == pods, "no pod was made anew for that")
        return "a rank killed: all train again after"

    def delete_pod(self):
        before, pods = self.status("long"), self.pods("long")
        self.kubectl("-n", TEAM, "delete", "pod", pods[0], "--wait=false")
        self.trains("long", self.story.nodes, newer_than=before)
        check(pods[0] not in self.pods("long"), "another pod is in its place")
        cause = self.story.admin.json("explain", "long", "-n", TEAM)["incidents"][-1]
        return f"a pod deleted: all train again (last {cause['cause']}) after"

    def scale(self):
        fewer = self.story.nodes - 1
        before = self.status("long")
        self.kubectl("scale", "mj/long", "-n", TEAM, f"--replicas={fewer}")
        self.trains("long", fewer, newer_than=before)
        wait_until(lambda: len(self.pods("long")) == fewer, 120, f"{fewer} pods are left")
        return f"scaled to {fewer} with as many pods in"

    def finish(self):
        self.apply("short", ("--epochs", "6", "--step-delay-ms", "20"))
        self.kubectl("wait", "mj/short", "-n", TEAM, "--for=condition=Complete", f"--timeout={self.story.options.patience}s", timeout=self.story.options.patience + 10)
        done = lambda: all(pod["status"]["phase"] == "Succeeded" for pod in self.pod_objects("short"))  # noqa: E731
        wait_until(done, 60, "the pods of a job that is over end by themselves")
        logs = [self.kubectl("-n", TEAM, "logs", pod, "-c", "train") for pod in self.pods("short")]
        line = re.search(r"test accuracy ([\d.]+)", "".join(logs))
        check(line, "kubectl logs shows what rank 0 printed, also after the end")
        return f"another job to its end (accuracy {line[1]}, its pods Completed, their logs there) in"

    # What several parts ask

    def apply(self, name, arguments):
        story, options = self.story, self.story.options
        gpus, nodes = options.gpus_per_node, story.nodes
        worker = {
            "name": "train",
            "image": story.workers_image(),
            "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "script", "mountPath": SCRIPT.rpartition("/")[0]}, {"name": "data", "mountPath": "/data"}],
        }
        volumes = [{"name": "script", "configMap": {"name": "script"}}, {"name": "data", "emptyDir": {}}]
        spec = {
            "replicas": nodes,
            "minReplicas": nodes - 1,
            "maxReplicas": nodes,
            "procPerNode": max(gpus, 1),
            "gpusPerNode": gpus,
            "command": [options.python],
            "args": [SCRIPT, "--checkpoint-dir", f"/data/{name}", *arguments],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "workingDir": "/tmp",
            "restartPolicy": {"maxRestarts": 50, "window": "1h"},
            "stopGracePeriod": "5s",
            "scaleUpCooldown": "1s",
            "template": {"spec": {"containers": [worker], "volumes": volumes}},
        }
        document = {"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": name, "namespace": TEAM}, "spec": spec}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(document))

    def status(self, job):
        return self.story.admin.json("get", "job", job, "-n", TEAM)["status"]

    def trains(self, job, nodes, newer_than=None):
        return self.story.trains(job, nodes, newer_than, namespace=TEAM)

    def pod_objects(self, job):
        found = self.kubectl.objects("pods", "-n", TEAM, "-l", f"{LABEL}={job}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pods(self, job):
        return sorted(pod["metadata"]["name"] for pod in self.pod_objects(job))


def are_made(kubectl):
    """Whether the coordinator makes worker pods."""
    container = kubectl.json("get", "statefulset", "muster-coordinator", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0]
    return any(argument.startswith("--kubernetes-pods=") for argument in container.get("args", []))
