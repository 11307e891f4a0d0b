//! Jobs in three forms: a user's file, a request, and the store's record.

use std::{fs, path::Path};

use muster_cli::jobfile::{self, Reader};
use muster_core::{
    fleet::{Actor, Cordon, Event, NodeRecord, job::JobRecord},
    id::JobUid,
    spec::{API_VERSION, JobDocument, KIND, Metadata, SpecDocument},
    time::Timestamp,
};
use muster_foreign::Options;
use muster_proto::{
    convert::jobs,
    v1::{JobRef, JobSpec, SubmitRequest},
};
use prost::Message;

use super::json_again;

/// An accepted document means the same after it was stored and read.
fn checked(document: &JobDocument) {
    match document.check() {
        Ok((name, spec)) => {
            let again = JobDocument {
                api_version: API_VERSION.into(),
                kind: KIND.into(),
                metadata: Metadata {
                    name: name.name.clone(),
                    namespace: Some(name.namespace.clone()),
                },
                spec: jobs::checked_document(&spec),
            };
            assert_eq!(
                again.check().expect("an accepted job is accepted again"),
                (name, spec)
            );
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|error| !error.message.is_empty()));
        }
    }
}

pub(super) fn submit_request(input: &[u8]) {
    let Ok(request) = SubmitRequest::decode(input) else {
        return;
    };
    let document = jobs::document(request.r#ref, request.spec);
    let (reference, spec) = jobs::document_to_wire(&document);
    assert_eq!(jobs::document(Some(reference), Some(spec)), document);
    checked(&document);
}

fn a_document(full: bool) -> JobDocument {
    let mut spec = SpecDocument {
        args: vec!["train.py".into()],
        ..SpecDocument::default()
    };
    if full {
        spec.replicas = Some(3);
        spec.min_replicas = Some(2);
        spec.max_replicas = Some(4);
        spec.proc_per_node = Some(2);
        spec.scale_up_cooldown = Some("30s".into());
        spec.fence_after = Some("5m".into());
        spec.stop_grace_period = Some("10s".into());
        spec.launch = Some("fork".into());
        spec.working_dir = Some("/data".into());
    }
    let metadata = Metadata {
        name: "digits".into(),
        namespace: full.then(|| "team-a".into()),
    };
    JobDocument {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        metadata,
        spec,
    }
}

pub(super) fn submit_seeds() -> Vec<Vec<u8>> {
    let wire = |full| {
        let (reference, spec): (JobRef, JobSpec) = jobs::document_to_wire(&a_document(full));
        let request = SubmitRequest {
            r#ref: Some(reference),
            spec: Some(spec),
            request_id: "r".into(),
            validate_only: false,
        };
        request.encode_to_vec()
    };
    vec![wire(false), wire(true)]
}

/// A refusal names lines that the file has.
pub(super) fn job_file(input: &[u8]) {
    let reader = Reader {
        here: "/here".into(),
        ..Reader::default()
    };
    match jobfile::read("job.yaml", input, &reader) {
        Ok(jobs) => {
            assert!(!jobs.documents.is_empty());
            jobs.documents.iter().for_each(checked);
        }
        Err(bad) => assert!(
            !bad.problems.is_empty() && bad.to_string().lines().all(|line| !line.is_empty())
        ),
    }
}

/// Another system's job file. What is accepted is a job, and reads the same once it is written down.
pub(super) fn foreign_file(input: &[u8]) {
    let reader = Reader {
        here: "/here".into(),
        options: Options {
            command: vec!["python3".into(), "/opt/train.py".into()],
            suffix: "abcde".into(),
            ..Options::default()
        },
        strict: false,
    };
    let Ok(jobs) = jobfile::read("job.yaml", input, &reader) else {
        job_file(input);
        return;
    };
    for document in &jobs.documents {
        checked(document);
        let text = serde_json::to_vec(document).expect("a document can be written");
        let again = jobfile::read("job.json", &text, &reader).expect("what was converted is a job");
        assert_eq!(&again.documents, std::slice::from_ref(document));
        assert!(again.remarks.is_empty());
    }
    assert!(jobs.remarks.iter().all(|remark| !remark.message.is_empty()));
}

/// Files of the reader's own tests. Short ones, because every cut of each is tried.
pub(super) fn foreign_seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../foreign/tests/files");
    let read = |name: &str| {
        fs::read(folder.join(name).with_extension("yaml")).expect("a file of the reader is there")
    };
    [
        "elastic-job",
        "pytorch-unequal",
        "pods-by-hand-fetched",
        "train-job-refused",
        "paddle-alone",
    ]
    .map(read)
    .into_iter()
    .chain(["slurm-one-node", "slurm-array"].map(|name| {
        let script = folder.join(name).with_extension("sbatch");
        fs::read(script).expect("a script of the reader is there")
    }))
    .collect()
}

pub(super) fn file_seeds() -> Vec<Vec<u8>> {
    let yaml = "apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata:\n  name: digits\nspec:\n  replicas: 3\n  minReplicas: 2\n  \
                args: [train.py, --epochs, \"20\"]\n  env:\n    - name: A\n      value: \"b\"\n  restartPolicy:\n    maxRestarts: 3\n    \
                window: 1h\n";
    vec![
        yaml.as_bytes().to_vec(),
        serde_json::to_vec(&a_document(true)).expect("a seed can be written"),
    ]
}

pub(super) fn store_record(input: &[u8]) {
    json_again::<JobRecord>(input);
    json_again::<NodeRecord>(input);
    json_again::<Event>(input);
}

pub(super) fn record_seeds() -> Vec<Vec<u8>> {
    let (name, spec) = a_document(true).check().expect("a seed is right");
    let job = JobRecord::submitted(
        JobUid::from("0192-ab"),
        name.clone(),
        spec,
        String::new(),
        Timestamp(5),
    );
    let event = Event {
        sequence: 4,
        at: Timestamp(9),
        warning: true,
        reason: "NodeLost".into(),
        message: "silent for 5 s".into(),
        job: Some((job.uid.clone(), name)),
        node: Some("node-1".into()),
        generation: None,
        actor: Some(Actor::Local { uid: 0 }),
    };
    let cordon = Cordon {
        by: "ada".into(),
        reason: "fan".into(),
        at: Timestamp(2),
        jobs: Vec::new(),
    };
    vec![
        serde_json::to_vec(&job).expect("a seed can be written"),
        serde_json::to_vec(&event).expect("a seed can be written"),
        serde_json::to_vec(&cordon).expect("a seed can be written"),
    ]
}
