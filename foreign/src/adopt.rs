//! Objects of other systems' kinds in a Kubernetes cluster: which kinds a coordinator may take, and one
//! such object as a job with pods of its own.
//!
//! The object is read by the same tables as a file. What a file's user would see on the command line is
//! in the verdicts here. Whether an object is for Muster the operator decides.

use muster_core::spec::JobDocument;

use crate::{
    documents,
    options::Options,
    spelling::nearest,
    status::{self, Shown},
    tree::{Node, parse_all},
    verdict::{Remark, Verdict},
};

/// A kind whose objects can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Adoptable {
    pub kind: &'static str,
    pub group: &'static str,
    pub version: &'static str,
    /// As `pytorchjobs`.
    pub plural: &'static str,
    /// The labels by which the kind's users find its pods.
    pub labels: PodLabels,
}

/// The labels of a kind's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodLabels {
    /// `training.kubeflow.org/...`, and this name of the operator.
    Kubeflow(&'static str),
    /// Those of Baidu's operator for this group, which have no prefix.
    AiTraining(&'static str),
    /// Those of a JobSet with one Job.
    JobSet,
    /// The kind is known to have none that anybody relies on.
    None,
}

impl PodLabels {
    /// What all pods of a job have.
    pub fn of_job(self, job: &str) -> Vec<(String, String)> {
        let labels: &[(&str, &str)] = match self {
            Self::Kubeflow(operator) => &[
                ("training.kubeflow.org/job-name", job),
                ("training.kubeflow.org/operator-name", operator),
            ],
            Self::AiTraining(group) => &[
                ("GroupName", group),
                ("TrainingJobName", job),
                ("JobName", job),
            ],
            Self::JobSet => &[("jobset.sigs.k8s.io/jobset-name", job)],
            Self::None => &[],
        };
        let owned = labels.iter();
        owned
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// The label with the group of a member.
    pub fn of_group(self) -> Option<&'static str> {
        match self {
            Self::Kubeflow(_) => Some("training.kubeflow.org/replica-type"),
            Self::AiTraining(_) => Some("TrainingJobReplicaName"),
            Self::JobSet => Some("jobset.sigs.k8s.io/replicatedjob-name"),
            Self::None => None,
        }
    }

    /// What the pod of a member has, by the member's name, as `worker-1`. A value that is `None` is taken
    /// away. `is_first`: no other member has a lower rank.
    pub fn of_member(self, member: &str, is_first: bool) -> Vec<(String, Option<String>)> {
        let (Some(of_group), Some((group, index))) = (self.of_group(), member.rsplit_once('-'))
        else {
            return Vec::new();
        };
        let (of_index, of_role, role) = match self {
            // mpi-operator writes the group there instead.
            Self::Kubeflow(operator) => (
                "training.kubeflow.org/replica-index",
                "training.kubeflow.org/job-role",
                match operator {
                    "mpi-operator" => Some(group),
                    _ => is_first.then_some("master"),
                },
            ),
            Self::JobSet => (
                "batch.kubernetes.io/job-completion-index",
                "jobset.sigs.k8s.io/job-index",
                Some("0"),
            ),
            Self::AiTraining(_) | Self::None => ("TrainingJobReplicaIndex", "PodRole", Some(group)),
        };
        [
            (of_group, Some(group)),
            (of_index, Some(index)),
            (of_role, role),
        ]
        .map(|(name, value)| (name.to_owned(), value.map(str::to_owned)))
        .into()
    }
}

const fn kubeflow(
    kind: &'static str,
    plural: &'static str,
    version: &'static str,
    operator: &'static str,
) -> Adoptable {
    Adoptable {
        kind,
        group: "kubeflow.org",
        version,
        plural,
        labels: PodLabels::Kubeflow(operator),
    }
}

/// All kinds that can be taken. A name that fits several means the first.
pub const ADOPTABLE: [Adoptable; 11] = [
    kubeflow("PyTorchJob", "pytorchjobs", "v1", "pytorchjob-controller"),
    kubeflow("TFJob", "tfjobs", "v1", "tfjob-controller"),
    kubeflow("JAXJob", "jaxjobs", "v1", "jaxjob-controller"),
    kubeflow("XGBoostJob", "xgboostjobs", "v1", "xgboostjob-controller"),
    kubeflow("PaddleJob", "paddlejobs", "v1", "paddlejob-controller"),
    kubeflow("MPIJob", "mpijobs", "v1", "mpijob-controller"),
    kubeflow("MPIJob", "mpijobs", "v2beta1", "mpi-operator"),
    Adoptable {
        kind: "ElasticJob",
        group: "elastic.pytorch.org",
        version: "v1alpha1",
        plural: "elasticjobs",
        labels: PodLabels::None,
    },
    ai_training("kongming.cce.baiudbce.com"),
    ai_training("elasticdeeplearning.ai"),
    Adoptable {
        kind: "TrainJob",
        group: "trainer.kubeflow.org",
        version: "v1alpha1",
        plural: "trainjobs",
        labels: PodLabels::JobSet,
    },
];

const fn ai_training(group: &'static str) -> Adoptable {
    Adoptable {
        kind: "AITrainingJob",
        group,
        version: "v1",
        plural: "aitrainingjobs",
        labels: PodLabels::AiTraining(group),
    }
}

impl Adoptable {
    /// Its name in full, as kubectl takes it: `mpijobs.v2beta1.kubeflow.org`.
    pub fn full_name(&self) -> String {
        format!("{}.{}.{}", self.plural, self.version, self.group)
    }

    /// The path of its group and version.
    pub fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }

    /// Its pods are in another object, which it names.
    pub fn has_runtime(&self) -> bool {
        self.labels == PodLabels::JobSet
    }

    /// Its definition may have no status subresource, as that of trainingjob-operator. Then the status is
    /// written with the object.
    pub fn may_lack_status(&self) -> bool {
        matches!(self.labels, PodLabels::AiTraining(_))
    }

    /// What its system says of such an object.
    pub fn words(&self) -> Shown {
        let version = format!("{}/{}", self.group, self.version);
        status::shown(self.kind, &version).expect("each kind has words")
    }

    fn is_called(&self, word: &str) -> bool {
        let with_group = format!("{}.{}", self.plural, self.group);
        [self.plural, &with_group, &self.full_name()].contains(&word)
    }
}

/// The kind that this word names, as kubectl would take it: `pytorchjobs`, `pytorchjobs.kubeflow.org`,
/// `mpijobs.v2beta1.kubeflow.org`.
pub fn adoptable(word: &str) -> Result<Adoptable, String> {
    let word = word.trim().to_ascii_lowercase();
    if let Some(found) = ADOPTABLE.iter().find(|kind| kind.is_called(&word)) {
        return Ok(*found);
    }
    let names: Vec<String> = ADOPTABLE.iter().map(Adoptable::full_name).collect();
    let mut short: Vec<&str> = ADOPTABLE.iter().map(|kind| kind.plural).collect();
    short.dedup();
    Err(match nearest(&word, &short) {
        Some(name) => format!("is no kind that can be adopted; did you mean {name}?"),
        None => format!(
            "is no kind that can be adopted; the kinds are {}",
            names.join(", ")
        ),
    })
}

/// An object as a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Adopted {
    pub document: JobDocument,
    /// The template of its pods.
    pub template: Node,
    /// The fields that have no effect here.
    pub warnings: Vec<Remark>,
}

/// Reads an object, given as JSON, with the runtime that it names. If its kind has runtimes, and this one is
/// not read yet, the job is not whole: it says what the object says itself. The error has every reason,
/// as `FIELD: reason`.
pub fn adopt(json: &str, runtime: Option<&str>) -> Result<Adopted, Vec<String>> {
    let parse = |text: &str| parse_all(text).map_err(|(_, message)| vec![message]);
    let mut trees = parse(json)?;
    if let Some(runtime) = runtime {
        trees.extend(parse(runtime)?);
    }
    let trees: Vec<&Node> = trees.iter().collect();
    let options = Options {
        pods: true,
        adopted: true,
        runtime_later: runtime.is_none(),
        ..Options::default()
    };
    let mut reading = documents::read(&trees, 0, &options);
    let of = |verdict: Verdict, remarks: &[Remark]| -> Vec<Remark> {
        let all = remarks.iter();
        all.filter(|remark| remark.verdict == verdict)
            .cloned()
            .collect()
    };
    let job = reading.jobs.pop();
    let found = job.and_then(|job| Some((job.document, job.object?.template)));
    match found {
        Some((document, template)) => Ok(Adopted {
            document,
            template,
            warnings: of(Verdict::Warning, &reading.remarks),
        }),
        None => Err(of(Verdict::Refusal, &reading.remarks)
            .iter()
            .map(said)
            .collect()),
    }
}

/// A verdict without its place: an object has no lines.
pub fn said(remark: &Remark) -> String {
    match remark.path.as_str() {
        "" => remark.message.clone(),
        path => format!("{path}: {}", remark.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_kubectl_names_them() {
        let named = |word: &str| adoptable(word).map(|kind| kind.full_name());
        for (word, full) in [
            ("pytorchjobs", "pytorchjobs.v1.kubeflow.org"),
            ("PyTorchJobs", "pytorchjobs.v1.kubeflow.org"),
            ("mpijobs", "mpijobs.v1.kubeflow.org"),
            ("mpijobs.kubeflow.org", "mpijobs.v1.kubeflow.org"),
            (
                "mpijobs.v2beta1.kubeflow.org",
                "mpijobs.v2beta1.kubeflow.org",
            ),
            (
                "aitrainingjobs",
                "aitrainingjobs.v1.kongming.cce.baiudbce.com",
            ),
            (
                "aitrainingjobs.elasticdeeplearning.ai",
                "aitrainingjobs.v1.elasticdeeplearning.ai",
            ),
        ] {
            assert_eq!(named(word).as_deref(), Ok(full));
        }
        let near = named("pytorchjob").unwrap_err();
        assert!(near.ends_with("did you mean pytorchjobs?"), "{near}");
        assert!(
            named("pods")
                .unwrap_err()
                .contains("jaxjobs.v1.kubeflow.org")
        );
    }

    /// Each is a kind that files may have.
    #[test]
    fn each_kind_is_read() {
        for kind in ADOPTABLE {
            let known = crate::kinds::find(kind.group, kind.kind, kind.version);
            assert!(matches!(known, crate::kinds::Known::Reads(_)), "{kind:?}");
            assert_eq!(kind.words().plural, kind.plural);
        }
    }

    const OBJECT: &str = r#"{
      "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
      "metadata": {"name": "digits", "namespace": "team-a", "uid": "u", "labels": {"muster.dev/adopt": "true"}},
      "spec": {
        "runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "restartPolicy": "OnFailure", "template": {"spec": {
          "containers": [{"name": "pytorch", "image": "train:1", "command": ["python", "train.py"]}]}}}}},
      "status": {"conditions": []}}"#;

    #[test]
    fn an_object_becomes_a_job_with_pods() {
        let adopted = adopt(OBJECT, None).unwrap();
        let spec = &adopted.document.spec;
        assert_eq!(spec.replicas, Some(2));
        assert_eq!((&*spec.command[0], &*spec.args[0]), ("python", "train.py"));
        assert_eq!(spec.origin.as_ref().unwrap().kind, "PyTorchJob");
        assert_eq!(adopted.warnings, []);
        let image = adopted.template.entry("spec").unwrap();
        let containers = &image.node.entry("containers").unwrap().node.value;
        let crate::tree::Value::List(containers) = containers else {
            panic!("{containers:?}");
        };
        assert_eq!(containers[0].text_at(&["image"]), Some("train:1"));
        assert_eq!(containers[0].entry("command"), None);
    }

    const TRAIN_JOB: &str = r#"{
      "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "digits"},
      "spec": {"runtimeRef": {"name": "torch"}, "suspend": true, "managedBy": "kueue.x-k8s.io/multikueue",
        "trainer": {"numNodes": 3, "args": ["train.py"]}}}"#;
    const RUNTIME: &str = r#"{
      "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime", "metadata": {"name": "torch"},
      "spec": {"mlPolicy": {"torch": {}}, "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "x", "command": ["torchrun"]}]}}}}}]}}}}"#;

    #[test]
    fn a_train_job_has_the_pods_of_its_runtime() {
        let early = adopt(TRAIN_JOB, None).unwrap().document.spec;
        assert_eq!((early.replicas, early.suspend), (Some(3), Some(true)));
        let adopted = adopt(TRAIN_JOB, Some(RUNTIME)).unwrap();
        let spec = &adopted.document.spec;
        assert_eq!(
            (spec.replicas, &*spec.args),
            (Some(3), &["train.py".into()][..])
        );
        let pods = serde_saphyr::to_string(&adopted.template).unwrap();
        assert!(pods.contains("image: x"), "{pods}");
    }

    /// Those of the job itself are known before its runtime is read.
    #[test]
    fn a_train_job_is_refused_for_its_own_words_first() {
        let patched = TRAIN_JOB.replace(
            "\"suspend\"",
            "\"initializer\": {\"model\": {}}, \"suspend\"",
        );
        let why = adopt(&patched, None).unwrap_err();
        assert!(
            why[0].starts_with("spec.initializer: downloads before"),
            "{why:?}"
        );
        let other = RUNTIME.replace("torch\": {}", "flux\": {}");
        assert_eq!(
            adopt(TRAIN_JOB, Some(&other)).unwrap_err(),
            [
                "ClusterTrainingRuntime torch.spec.mlPolicy.flux: is a runtime of flux, and Muster takes those of torch"
            ]
        );
    }

    #[test]
    fn a_refusal_has_every_field_and_reason() {
        let bad = OBJECT.replace("\"replicas\"", "\"replica\"").replace(
            "\"pytorchReplicaSpecs\"",
            "\"colour\": 1, \"pytorchReplicaSpecs\"",
        );
        let why = adopt(&bad, None).unwrap_err();
        assert_eq!(why.len(), 2, "{why:?}");
        assert!(why[0].starts_with("spec.colour: unknown field"), "{why:?}");
        assert_eq!(
            why[1],
            "spec.pytorchReplicaSpecs.Worker.replica: unknown field; did you mean replicas?"
        );
    }

    #[test]
    fn pods_carry_the_labels_of_their_kind() {
        let kind = adoptable("pytorchjobs").unwrap();
        let of_job = kind.labels.of_job("digits");
        assert_eq!(
            of_job[0],
            ("training.kubeflow.org/job-name".into(), "digits".into())
        );
        let values = |member: &str, first: bool| -> Vec<Option<String>> {
            let all = kind.labels.of_member(member, first);
            all.into_iter().map(|(_, value)| value).collect()
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            values("worker-0", true),
            [some("worker"), some("0"), some("master")]
        );
        assert_eq!(
            values("worker-12", false),
            [some("worker"), some("12"), None]
        );
        let mpi = adoptable("mpijobs.v2beta1.kubeflow.org").unwrap();
        let role = mpi.labels.of_member("launcher-0", true).pop().unwrap().1;
        assert_eq!(role, some("launcher"));
        assert_eq!(
            adoptable("elasticjobs").unwrap().labels.of_job("digits"),
            []
        );
    }
}
