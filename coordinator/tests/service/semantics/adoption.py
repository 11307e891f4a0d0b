"""What a user of Kubeflow's own SDK does with a PyTorchJob. The test beside it plays the cluster.

Arguments: the address of the API server, a token, the namespace.
"""

import json
import sys

import urllib3
from kubeflow.training import TrainingClient, models
from kubernetes import client

urllib3.disable_warnings()
address, token, namespace = sys.argv[1:]
configuration = client.Configuration(host=address)
configuration.verify_ssl = False
configuration.api_key = {"authorization": f"Bearer {token}"}
training = TrainingClient(client_configuration=configuration, namespace=namespace, job_kind="PyTorchJob")


def wait(condition):
    training.wait_for_job_conditions("sdk", expected_conditions={condition}, polling_interval=1, wait_timeout=300)
    print(condition, flush=True)


container = client.V1Container(name="pytorch", image="me/train:1", command=["python", "train.py"], working_dir="/")
template = client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[container], termination_grace_period_seconds=0))
worker = models.KubeflowOrgV1ReplicaSpec(replicas=2, restart_policy="OnFailure", template=template)
training.create_job(
    models.KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1",
        kind="PyTorchJob",
        metadata=client.V1ObjectMeta(name="sdk", namespace=namespace, labels={"muster.dev/adopt": "true"}),
        spec=models.KubeflowOrgV1PyTorchJobSpec(
            run_policy=models.KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
            pytorch_replica_specs={"Worker": worker},
        ),
    )
)
wait("Created")
wait("Running")
assert training.is_job_running("sdk")
# The labels follow the status.
first = []
while len(first) != 1:
    first = training.get_job_pod_names("sdk", is_master=True)
pods = training.get_job_pod_names("sdk", replica_type="worker")
print(json.dumps({"pods": pods, "first": first}), flush=True)
assert len(pods) == 2 and first[0] in pods, (pods, first)
assert [job.metadata.name for job in training.list_jobs()] == ["sdk"]
# No kubelet runs here. But the API server says first whether the pod has a container of the name that the SDK asks for.
try:
    training.get_job_logs("sdk")
except RuntimeError as failed:
    told = failed.__context__.body
    assert "no preferred addresses" in told, told
wait("Succeeded")
assert training.is_job_succeeded("sdk") and not training.is_job_running("sdk")
training.delete_job("sdk")
print("deleted", flush=True)
