//! Job files of other systems, submitted as they are, train to their end on real nodes.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{fs, path::Path};

use muster_drills::{Cluster, python, scripts};

/// One file with a job of each way to start: torchrun in the command, a launcher in the image, the old
/// launcher that hands over `--local-rank`, code on the command line, a script for the shell, and a
/// process without torch.
const JOBS: &str = r#"
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: torchrun}
spec:
  pytorchReplicaSpecs:
    Master: &pods
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
          - name: pytorch
            image: torch:2
            command: [torchrun, --nproc_per_node=1, --nnodes=$(WORLD_SIZE), --node_rank=$(RANK)]
            args: [SCRIPTS/allreduce.py, --state, DIR/torchrun.step, --steps, "5"]
    Worker: *pods
---
apiVersion: elastic.pytorch.org/v1alpha1
kind: ElasticJob
metadata: {name: elastic}
spec:
  rdzvEndpoint: etcd:2379
  minReplicas: 1
  maxReplicas: 2
  replicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template: {spec: {containers: [{name: elasticjob-worker, image: "torch:2", args: [--nproc_per_node=1, SCRIPTS/allreduce.py, --state, DIR/elastic.step, --steps, "5"]}]}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: launch}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template: {spec: {containers: [{name: pytorch, image: "torch:2", command: [python, -m, torch.distributed.launch, --nproc_per_node, "2", DIR/local_rank.py, x]}]}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: inline}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    image: torch:2
    command: [torchrun, --no-python, python3, -c, "import os, torch; assert os.environ['WORLD_SIZE'] == '2'"]
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: shell}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template: {spec: {containers: [{name: pytorch, image: "torch:2", command: [bash, -c], args: ["echo rank $RANK of $WORLD_SIZE | grep 'of 2'"]}]}}
---
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: alone}
spec:
  tfReplicaSpecs:
    Worker: {template: {spec: {containers: [{name: tensorflow, image: "none:1", command: [python, DIR/alone.py]}]}}}
"#;

/// It is a program of its own, into which torch is not imported.
const ALONE: &str = "import sys\nassert 'torch' not in sys.modules\nprint('alone')\n";
const LOCAL_RANK: &str = "import os, sys\nassert sys.argv[1:] == ['--local-rank=' + os.environ['LOCAL_RANK'], 'x'], sys.argv\n";

#[test]
fn other_systems_jobs_run_as_they_are() {
    let (cluster, python) = (Cluster::up(2), python());
    fs::write(cluster.path("alone.py"), ALONE).unwrap();
    fs::write(cluster.path("local_rank.py"), LOCAL_RANK).unwrap();
    fs::write(
        cluster.path("site.yaml"),
        format!(
            "images:\n  'torch:*': {{python: {python}}}\n  'none:*': {{python: python3, env: {{PATH: '{}:/usr/bin:/bin'}}}}\n",
            Path::new(&python).parent().unwrap().display()
        ),
    )
    .unwrap();
    let jobs = JOBS
        .replace("SCRIPTS", scripts().to_str().unwrap())
        .replace(
            "DIR",
            cluster.path("").to_str().unwrap().trim_end_matches('/'),
        );
    fs::write(cluster.path("jobs.yaml"), jobs).unwrap();
    let (file, site) = (cluster.path("jobs.yaml"), cluster.path("site.yaml"));
    let said = cluster.muster([
        "submit",
        "-f",
        file.to_str().unwrap(),
        "--site",
        site.to_str().unwrap(),
    ]);
    assert_eq!(said.matches(" submitted\n").count(), 6, "{said}");
    for job in ["torchrun", "elastic", "launch", "inline", "shell", "alone"] {
        let waited = cluster.try_muster(["wait", job, "--for=complete", "--timeout", "120s"]);
        let explain = cluster.try_muster(["explain", job]);
        let told = String::from_utf8_lossy(&explain.stdout).into_owned();
        assert!(waited.status.success(), "{job}: {told}");
    }
    // It may have begun with one node, while the other was busy.
    let log = cluster.muster(["logs", "elastic", "--rank", "0"]);
    assert!(log.contains("step=5 world="), "{log}");
    let log = cluster.muster(["logs", "shell", "--rank", "1"]);
    assert!(log.contains("rank 1 of 2"), "{log}");
    // None of a file whose second job is wrong is submitted.
    let half = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: half}\nspec: {tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow, command: ['true']}]}}}}}\n---\napiVersion: kubeflow.org/v1\nkind: MXJob\n";
    fs::write(&file, half).unwrap();
    let refused = cluster.try_muster(["submit", "-f", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(!cluster.try_muster(["get", "job", "half"]).status.success());
}

/// A batch script as the tutorials have it: a rendezvous that nobody needs, an environment, and one `srun`.
const BATCH: &str = r#"#!/bin/bash
#SBATCH --job-name=batch --nodes=2 --ntasks-per-node=1 --gpus-per-node=0
#SBATCH --output=%x-%j.out

nodes=( $( scontrol show hostnames "$SLURM_JOB_NODELIST" ) )
head_node=${nodes[0]}
export MASTER_ADDR=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
echo "head node: $MASTER_ADDR"

cd DIR
source activate.sh
export WHO="ada l."

srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=2 --rdzv_backend=c10d \
  --rdzv_endpoint="$head_node:29500" batch.py "$WHO" "node-$SLURM_NODEID" > log 2>&1
"#;

const SUM: &str = "\
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
one = torch.ones(1)
dist.all_reduce(one)
slurm = [name for name in os.environ if name.startswith('SLURM_')]
print(f'{int(one)} ranks, {sys.argv[1:]} on {os.environ[\"GROUP_RANK\"]}, {os.environ[\"ACTIVATED\"]}, {slurm}')
dist.destroy_process_group()
";

#[test]
fn a_batch_script_of_slurm_trains_without_slurm() {
    let (cluster, python) = (Cluster::up(2), python());
    let folder = Path::new(&python).parent().unwrap().display();
    let activate = format!("export PATH={folder}:$PATH\nexport ACTIVATED=yes\n");
    fs::write(cluster.path("activate.sh"), activate).unwrap();
    fs::write(cluster.path("batch.py"), SUM).unwrap();
    let dir = cluster.path("");
    let script = BATCH.replace("DIR", dir.to_str().unwrap().trim_end_matches('/'));
    fs::write(cluster.path("train.sbatch"), script).unwrap();
    let file = cluster.path("train.sbatch");
    let submit = ["submit", "-f", file.to_str().unwrap(), "-o", "name"];
    let (one, two) = (cluster.muster(submit), cluster.muster(submit));
    assert_ne!(one, two, "each submission is another job");
    for said in [one, two] {
        let job = said.trim().strip_prefix("job/").unwrap();
        let waited = cluster.try_muster(["wait", job, "--for=complete", "--timeout", "120s"]);
        let explain = cluster.try_muster(["explain", job]);
        let told = String::from_utf8_lossy(&explain.stdout).into_owned();
        assert!(waited.status.success(), "{job}: {told}");
        let log = cluster.muster(["logs", job, "--rank", "3"]);
        let line = "4 ranks, ['ada l.', 'node-1'] on 1, yes, []";
        assert!(log.contains(line), "{log}");
    }
}
