//! Job files with the mistakes that people make: each is named with line, column and field, and
//! with what to do.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use muster_cli::jobfile::{FILE_MAX, Jobs, Reader, read};
use muster_core::spec::JobDocument;
use muster_foreign::Options;

fn read_at(text: &[u8], here: &str, namespace: Option<&str>) -> Result<Jobs, String> {
    let reader = Reader {
        here: here.into(),
        options: Options {
            namespace: namespace.map(str::to_owned),
            ..Options::default()
        },
        ..Reader::default()
    };
    read("job.yaml", text, &reader).map_err(|bad| bad.to_string())
}

/// The one job of a file.
fn accepted(text: &[u8], here: &str, namespace: Option<&str>) -> JobDocument {
    let mut jobs = read_at(text, here, namespace).unwrap();
    assert_eq!(jobs.documents.len(), 1);
    jobs.documents.remove(0)
}

fn refused(text: &[u8]) -> String {
    read_at(text, "/here", None).expect_err("must be refused")
}

/// A correct file. The wrong part of a case replaces one line, or is added to `spec`.
const GOOD: &str = "\
apiVersion: muster.dev/v1alpha1
kind: MusterJob
metadata:
  name: digits
spec:
  replicas: 2
  command: [python3]
  args: [train.py]
";

#[test]
fn a_good_file_is_read() {
    let document = accepted(GOOD.as_bytes(), "/here", None);
    assert_eq!(
        document.spec.working_dir.as_deref(),
        Some("/here"),
        "torchrun's users expect the current directory"
    );
    let relative = GOOD.to_owned() + "  workingDir: ../data\n";
    let document = accepted(relative.as_bytes(), "/here/there", Some("team"));
    assert_eq!(document.spec.working_dir.as_deref(), Some("/here/data"));
    assert_eq!(document.metadata.namespace.as_deref(), Some("team"));
}

/// A program needs no arguments, in any kind of file that may name one.
#[test]
fn a_program_without_arguments_is_a_job() {
    let ours = "apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata: {name: wrapper}\nspec: {command: [./run.sh]}\n";
    let role = "apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata: {name: wrapper}\nspec:\n  roles: [{name: worker, command: [./run.sh]}]\n";
    let pods = |api: &str, kind: &str, field: &str, container: &str| {
        format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: wrapper}}\nspec:\n  {field}:\n    Worker:\n      replicas: 2\n      template:\n        spec:\n          containers:\n          - {{name: {container}, image: i, command: [/app/run.sh]}}\n"
        )
    };
    let pytorch = pods(
        "kubeflow.org/v1",
        "PyTorchJob",
        "pytorchReplicaSpecs",
        "pytorch",
    );
    let tensorflow = pods("kubeflow.org/v1", "TFJob", "tfReplicaSpecs", "tensorflow");
    for (file, program) in [
        (ours, "./run.sh"),
        (role, "./run.sh"),
        (&pytorch, "/app/run.sh"),
        (&tensorflow, "/app/run.sh"),
    ] {
        let (_, spec) = accepted(file.as_bytes(), "/here", None).check().unwrap();
        let mut roles = spec.roles.iter().map(|role| (&role.command, &role.args));
        let (command, args) = roles.next_back().unwrap_or((&spec.command, &spec.args));
        assert_eq!(
            (command.join(" "), args.join(" ")),
            (program.into(), String::new()),
            "{file}"
        );
    }
    for interpreter in ["python3", "/opt/env/bin/python"] {
        let alone = ours.replace("./run.sh", interpreter);
        assert!(
            refused(alone.as_bytes()).contains("spec.args: names no script"),
            "{interpreter}"
        );
    }
}

#[test]
fn json_is_read_like_yaml() {
    let json = r#"{"apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "digits"},
        "spec": {"args": ["train.py", "\u00e9\ud83d\ude00"]}}"#;
    let document = accepted(json.as_bytes(), "/here", None);
    assert_eq!(document.spec.args, ["train.py", "é😀"]);
}

#[test]
fn byte_order_mark_and_null_mean_nothing() {
    let text = format!("\u{feff}{GOOD}  minReplicas:\n  env: ~\n");
    let document = accepted(text.as_bytes(), "/here", None);
    assert_eq!(document.spec.min_replicas, None);
}

#[test]
fn the_namespace_asked_for_must_be_the_file_s() {
    let text = GOOD.replace("  name: digits\n", "  name: digits\n  namespace: a\n");
    let error = read_at(text.as_bytes(), "/here", Some("b")).unwrap_err();
    assert_eq!(
        error,
        "job.yaml:5:14: metadata.namespace: is \"a\", but --namespace asks for \"b\""
    );
    assert!(read_at(text.as_bytes(), "/here", Some("a")).is_ok());
}

#[test]
fn a_file_may_have_several_jobs() {
    let other = GOOD.replace("name: digits", "name: letters");
    let text = format!("{GOOD}---\n{other}---\n# nothing\n---\napiVersion: v1\nkind: Service\n");
    let jobs = read_at(text.as_bytes(), "/here", None).unwrap();
    let names: Vec<&str> = jobs
        .documents
        .iter()
        .map(|job| job.metadata.name.as_str())
        .collect();
    assert_eq!(names, ["digits", "letters"]);
    assert_eq!(
        jobs.remarks[0].to_string(),
        "21:1: note: Service: is not needed: Muster tells ranks their addresses"
    );
    // What is wrong in one is told beside what is wrong in the other.
    let text = format!("{GOOD}---\n{}", GOOD.replace("replicas: 2", "replicas: 0"));
    assert_eq!(
        refused(text.as_bytes()),
        "job.yaml:10:1: metadata.name: is \"digits\", which is also the name of the job in line 1\n\
         job.yaml:15:13: spec.replicas: is 0, must be between 1 and 4096"
    );
    let text = "a: 1\n---\na: 2\n".as_bytes();
    assert!(refused(text).contains("job.yaml:3:1: a: unknown field"));
}

#[test]
fn files_that_are_no_document() {
    for (text, error) in [
        (
            &b""[..],
            "job.yaml:1:1: is empty; a MusterJob document is needed",
        ),
        (
            b"# nothing\n",
            "job.yaml:1:1: is empty; a MusterJob document is needed",
        ),
        (b"a: \xff\n", "job.yaml:1:4: is not UTF-8 text"),
        (
            b"ok: 1\nbad: a\xc3\x28\n",
            "job.yaml:2:7: is not UTF-8 text",
        ),
        (
            b"- a\n",
            "job.yaml:1:1: is a list, must be a mapping of fields",
        ),
        (
            b"train.py\n",
            "job.yaml:1:1: is the text \"train.py\", must be a mapping of fields",
        ),
        (
            b"a: b: c\n",
            "job.yaml:1:5: is not valid YAML: mapping values are not allowed in this context",
        ),
        (
            b"spec: [1\nkind: x\n",
            "job.yaml:2:5: is not valid YAML: illegal placement of ':' indicator",
        ),
        (
            b"spec:\n  a: 1\n   b: 2\n",
            "job.yaml:3:5: is not valid YAML: mapping values are not allowed in this context",
        ),
        (
            b"a: @b\n",
            "job.yaml:1:4: is not valid YAML: unexpected character: `@'",
        ),
        (
            b"a: *b\n",
            "job.yaml:1:4: refers to an anchor that is not defined before it",
        ),
        (
            b"a: .nan\n",
            "job.yaml:1:4: is not valid YAML: non-finite float `.nan` rejected by the configured policy",
        ),
        (
            b"[a]: 1\n",
            "job.yaml:1:1: is not valid YAML: expected string scalar",
        ),
    ] {
        assert_eq!(refused(text), error, "{:?}", String::from_utf8_lossy(text));
    }
    assert_eq!(
        refused("[".repeat(FILE_MAX as usize).as_bytes()),
        "job.yaml:1:256: is too large or too deeply nested for a job"
    );
}

#[test]
fn one_wrong_line() {
    let cases = [
        // The line that is replaced, its replacement, and the error.
        (
            "apiVersion: muster.dev/v1alpha1",
            "apiVersion: v1",
            "1:13: apiVersion: is \"v1\", must be \"muster.dev/v1alpha1\"",
        ),
        (
            "apiVersion: muster.dev/v1alpha1",
            "apiVersion: 1.5",
            "1:13: apiVersion: is the number 1.5, must be a text; write \"1.5\"",
        ),
        (
            "kind: MusterJob",
            "kind: Job",
            "2:7: kind: is \"Job\", must be \"MusterJob\"",
        ),
        (
            "kind: MusterJob",
            "Kind: MusterJob",
            "2:1: Kind: unknown field; did you mean kind?",
        ),
        (
            "  name: digits",
            "  name: Digits",
            "4:9: metadata.name: \"Digits\" has 'D': only lower-case letters, digits and '-' are allowed",
        ),
        (
            "  name: digits",
            "  name: 7",
            "4:9: metadata.name: is the number 7, must be a text; write \"7\"",
        ),
        (
            "  name: digits",
            "  name: -a",
            "4:9: metadata.name: \"-a\" must start with a letter",
        ),
        (
            "  name: digits",
            "  name: ''",
            "4:9: metadata.name: must not be empty",
        ),
        (
            "  name: digits",
            "  namespace: a",
            "3:1: metadata.name: must not be empty",
        ),
        (
            "  name: digits",
            "  nmae: digits",
            "4:3: metadata.nmae: unknown field; did you mean name?",
        ),
        (
            "  name: digits",
            "  name: {first: a}",
            "4:9: metadata.name: is a mapping, must be a text",
        ),
        (
            "  replicas: 2",
            "  replicas: two",
            "6:13: spec.replicas: is the text \"two\", must be a whole number",
        ),
        (
            "  replicas: 2",
            "  replicas: 2\n  replicas: 3",
            "7:3: \"replicas\" is set twice in the same mapping",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py, 1.10]",
            "8:20: spec.args[1]: is the number 1.10, must be a text; write \"1.10\"",
        ),
        (
            "  replicas: 2",
            "  replicas: \"2\"",
            "6:13: spec.replicas: is the text \"2\", must be a whole number; leave out the quotes",
        ),
        (
            "  replicas: 2",
            "  replicas: 2.5",
            "6:13: spec.replicas: is the number 2.5, must be a whole number",
        ),
        (
            "  replicas: 2",
            "  replicas: 0",
            "6:13: spec.replicas: is 0, must be between 1 and 4096",
        ),
        (
            "  replicas: 2",
            "  replicas: [2]",
            "6:13: spec.replicas: is a list, must be a whole number",
        ),
        (
            "  replicas: 2",
            "  replicas: yes",
            "6:13: spec.replicas: is yes, which YAML reads as true, must be a whole number",
        ),
        (
            "  replicas: 2",
            "  replicas: 99999999999999999999",
            "6:13: spec.replicas: is the number 99999999999999999999, which is too large",
        ),
        (
            "  replicas: 2",
            "  min_replicas: 1",
            "6:3: spec.min_replicas: unknown field; did you mean minReplicas?",
        ),
        (
            "  replicas: 2",
            "  nnodes: 2",
            "6:3: spec.nnodes: unknown field; did you mean replicas?",
        ),
        (
            "  replicas: 2",
            "  minReplicas: 3\n  maxReplicas: 2",
            "6:16: spec.minReplicas: is 3, must not be more than maxReplicas, which is 2",
        ),
        (
            "  replicas: 2",
            "  gpusPerNode: -1",
            "6:16: spec.gpusPerNode: is -1, must be between 0 and 256",
        ),
        (
            "  replicas: 2",
            "  procPerNode: 257",
            "6:16: spec.procPerNode: is 257, must be between 1 and 256",
        ),
        (
            "  command: [python3]",
            "  command: python3",
            "7:12: spec.command: is the text \"python3\", must be a list",
        ),
        (
            "  command: [python3]",
            "  command: ['']",
            "7:13: spec.command[0]: must not be empty",
        ),
        (
            "  args: [train.py]",
            "  args: []",
            "8:3: spec.args: names no script: give for example [train.py, --epochs, \"10\"] or [-m, package.module]",
        ),
        (
            "  args: [train.py]",
            "  args: [-c, 'print(1)']",
            "8:3: spec.args: torchrun cannot run `python -c`; put the code into a script",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py, --epochs, 10]",
            "8:30: spec.args[2]: is the number 10, must be a text; write \"10\"",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py, true]",
            "8:20: spec.args[1]: is the boolean true, must be a text; write \"true\"",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py, ~]",
            "8:20: spec.args[1]: is empty; leave it out, or write \"\" for an empty text",
        ),
        (
            "  args: [train.py]",
            "  arg: [train.py]",
            "8:3: spec.arg: unknown field; did you mean args?",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  quux: x",
            "9:3: spec.quux: unknown field; the fields here are replicas, minReplicas, \
             maxReplicas, multipleOf, procPerNode, gpusPerNode, command, args, env, workingDir, image, priority, queue, preemption, restartPolicy, stopGracePeriod, \
             scaleUpCooldown, fenceAfter, progress, launch, standbys, inspect, onStall, stallAfter, onSlowRank, stepPattern, checkpointPattern, nodeMix, placement, nodeSelector, affinity, nodeList, excludeNodes, requiredTopology, preferredTopology, tolerations, rules, suspend, after, startAfter, activeDeadlineSeconds, startDeadlineSeconds, ttlSecondsAfterFinished, notify, framework, roles, origin",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env:\n    A: b",
            "10:5: spec.env: is a mapping, must be a list",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env: [{name: RANK, value: x}]",
            "9:16: spec.env[0].name: RANK is set by Muster for every rank and cannot be set by a job",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env:\n    - name: A\n      value: 1",
            "11:14: spec.env[0].value: is the number 1, must be a text; write \"1\"",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env:\n    - value: b",
            "10:7: spec.env[0].name: is missing",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env:\n    - nam: b",
            "10:7: spec.env[0].nam: unknown field; did you mean name?",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env:\n    - name: A\n      valueFrom: {secretKeyRef: {name: s, key: k}}",
            "11:19: spec.env[0].valueFrom.secretKeyRef: Muster reads no objects of a cluster for a job: name a file of the nodes (valueFrom.file), \
             or give the job a template whose container has the variable",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  env:\n    - {name: A}\n    - {name: A}",
            "11:14: spec.env[1].name: A is set already by spec.env[0]",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  priority: 1000001",
            "9:13: spec.priority: is 1000001, must be between -1000000 and 1000000",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  stopGracePeriod: 10",
            "9:20: spec.stopGracePeriod: is the number 10, must be a text; write \"10\"",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  stopGracePeriod: 10 s",
            "9:20: spec.stopGracePeriod: \"10 s\" is not a period; write for example 500ms, 10s, 1m30s or 2h",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  stopGracePeriod: 20m",
            "9:20: spec.stopGracePeriod: is 20m, must be between 0s and 15m",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  restartPolicy: {max: 3}",
            "9:19: spec.restartPolicy.max: unknown field; the fields here are maxRestarts, window, maxSameFailures",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  restartPolicy: 3",
            "9:18: spec.restartPolicy: is the number 3, must be a mapping of fields",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  restartPolicy: {window: 0s}",
            "9:27: spec.restartPolicy.window: is 0s, must be between 1s and 720h",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  progress: sync",
            "9:13: spec.progress: is \"sync\", must be one of synchronous, independent",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  launch: warm",
            "9:11: spec.launch: is \"warm\", must be one of cold, parked, fork, direct, exec, auto",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  stepPattern: step",
            "9:16: spec.stepPattern: must have a group for the step number, as in: step (\\d+)",
        ),
        (
            "  args: [train.py]",
            "  args: [train.py]\n  checkpointPattern: out/**",
            "9:22: spec.checkpointPattern: must be a path, with * for any part of a name and at most 256 bytes; ** is not possible",
        ),
    ];
    assert!(cases.len() >= 45);
    let mut wrong = Vec::new();
    for (line, instead, error) in cases {
        assert!(GOOD.contains(line));
        let text = GOOD.replace(line, instead);
        let (is, must) = (refused(text.as_bytes()), format!("job.yaml:{error}"));
        if is != must {
            wrong.push(format!("{instead}\n   is {is}\n must {must}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_lines() {
    let text = "\
kind: Job
metadata:
  name: A
spec:
  replica: 2
  args:
    - train.py
    - 3
  priority: high
  env:
    - name: OK
      value: x
    - name: 2X
      value: x
";
    let errors = refused(text.as_bytes());
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(
        lines,
        [
            "job.yaml:1:1: apiVersion: is \"\", must be \"muster.dev/v1alpha1\"",
            "job.yaml:1:7: kind: is \"Job\", must be \"MusterJob\"",
            "job.yaml:3:9: metadata.name: \"A\" has 'A': only lower-case letters, digits and '-' are allowed",
            "job.yaml:5:3: spec.replica: unknown field; did you mean replicas?",
            "job.yaml:8:7: spec.args[1]: is the number 3, must be a text; write \"3\"",
            "job.yaml:9:13: spec.priority: is the text \"high\", must be a whole number",
            "job.yaml:13:13: spec.env[1].name: \"2X\" is not the name of an environment variable (letters, digits and '_', not starting with a digit)",
        ]
    );
}

const LISTED: &str = "the fields here are";

#[test]
fn what_only_an_object_of_a_cluster_has_is_told_so() {
    let errors = refused(
        b"apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata:\n  name: a\nspec:\n  args: [train.py]\n  networkPolicy: Job\n  template: {spec: {}}\n",
    );
    let why = "only MusterJob objects in Kubernetes have it: submit the file with kubectl apply -f";
    assert_eq!(
        errors,
        format!("job.yaml:7:3: spec.networkPolicy: {why}\njob.yaml:8:3: spec.template: {why}")
    );
    let elsewhere = refused(
        b"apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata:\n  name: a\ntemplate: {}\n",
    );
    assert!(elsewhere.contains("template: unknown field"), "{elsewhere}");
}

#[test]
fn rules_are_wrong_at_their_places() {
    let errors = refused(
        b"apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata:\n  name: a\nspec:\n  args: [train.py]\n  activeDeadlineSeconds: 0\n  rules:\n  - \
        {when: exit, codes: 3, then: fail}\n  - {then: fail}\n  - {when: failure, then: restart, limit: 0}\n  - {when: success, then: restart, off: any}\n  - \
        {when: signal, signals: [SIGFOO], then: fail}\n",
    );
    let errors: Vec<&str> = errors.lines().collect();
    assert_eq!(
        errors,
        [
            "job.yaml:7:26: spec.activeDeadlineSeconds: is 0, must be between 1 and 315360000",
            "job.yaml:9:25: spec.rules[0].codes: is the number 3, must be a text; write \"3\"",
            "job.yaml:10:5: spec.rules[1].when: is missing",
            "job.yaml:11:43: spec.rules[2].limit: is 0, which allows no restart; use then: fail",
            "job.yaml:12:27: spec.rules[3].then: is restart, and ranks that ended well are not started again",
            "job.yaml:12:36: spec.rules[3].off: unknown field; did you mean of?",
            "job.yaml:13:30: spec.rules[4].signals[0]: is \"SIGFOO\", must be a signal, as SIGUSR1, or its number from 1 to 64",
        ]
    );
}

#[test]
fn the_names_of_fields_and_kinds_are_listed_once() {
    let errors = refused(
        b"apiVersion: muster.dev/v1alpha1\nkind: MusterJob\nmetadata:\n  name: a\n  labels: {}\nspec:\n  args: [a.py]\n  quux: x\n  volumes: []\n",
    );
    let lists: Vec<bool> = errors.lines().map(|line| line.contains(LISTED)).collect();
    assert_eq!(lists, [true, true, false], "{errors}");
    assert!(errors.ends_with("spec.volumes: unknown field"), "{errors}");
    let strangers = refused(
        b"apiVersion: ray.io/v1\nkind: RayJob\n---\napiVersion: ray.io/v1\nkind: RayCluster\n",
    );
    let lines: Vec<&str> = strangers.lines().collect();
    assert!(lines[0].contains("RayJob of ray.io is not read; the kinds are MusterJob,"));
    assert_eq!(lines[1], "job.yaml:4:1: RayCluster of ray.io is not read");
}

#[test]
fn a_refused_kind_is_all_that_is_said_of_a_file() {
    let job = b"apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  template: {spec: {containers: [{name: a, image: b}]}}\n";
    let why = refused(job);
    assert_eq!(why.lines().count(), 1, "{why}");
    assert!(
        why.contains("is a Job of batch/v1, which is not read"),
        "{why}"
    );
    assert!(why.contains("write a MusterJob"), "{why}");
}
