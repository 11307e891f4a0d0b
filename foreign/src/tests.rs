//! Whole files: what each becomes, that every field has a verdict, and that a conversion is a job.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod batch;
mod rounds;
mod upstream;

use std::{fs, path::PathBuf};

use crate::{
    Options, Reading, Remark, Site, Verdict, is_ours, read,
    tree::{Node, Place, Value, parse_all},
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/files")
}

/// The names of all files, and their texts.
fn files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs::read_dir(folder())
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter_map(|path| {
            let name = path
                .file_name()?
                .to_str()?
                .strip_suffix(".yaml")?
                .to_owned();
            (!name.ends_with(".site")).then(|| (name, fs::read_to_string(&path).unwrap()))
        })
        .collect();
    files.sort();
    assert!(files.len() >= 25, "the files have moved");
    files
}

fn options(name: &str) -> Options {
    let site = fs::read_to_string(folder().join(format!("{name}.site.yaml")));
    Options {
        site: site.map_or(Site::default(), |text| {
            Site::read(&parse_all(&text).unwrap()[0]).unwrap()
        }),
        suffix: "abcde".into(),
        ..Options::default()
    }
}

fn read_text(text: &str, options: &Options) -> Reading {
    let trees = parse_all(text).unwrap();
    let others: Vec<&Node> = trees.iter().filter(|tree| !is_ours(tree)).collect();
    read(&others, trees.len() - others.len(), options)
}

/// What a user is told of a file, and what they get.
fn shown(name: &str, reading: &Reading) -> String {
    let mut text = String::new();
    for remark in &reading.remarks {
        text.push_str(&format!("{name}.yaml:{remark}\n"));
    }
    for document in reading.documents() {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(document).unwrap());
    }
    text
}

/// `MUSTER_BLESS=1` writes the files anew. Read the difference: it is what users get.
#[test]
fn each_file_becomes_what_is_written_beside_it() {
    let mut wrong = Vec::new();
    for (name, text) in files() {
        let is = shown(&name, &read_text(&text, &options(&name)));
        let golden = folder().join(format!("{name}.out"));
        if std::env::var_os("MUSTER_BLESS").is_some() {
            fs::write(&golden, &is).unwrap();
        }
        let must = fs::read_to_string(&golden).unwrap_or_default();
        if is != must {
            let differs = is.lines().zip(must.lines()).find(|(one, two)| one != two);
            wrong.push(format!("{name}: {differs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same for a cluster, where the pods of the file are kept.
#[test]
fn each_file_becomes_an_object_with_its_pods() {
    let (mut wrong, mut kept) = (Vec::new(), 0);
    for (name, text) in files() {
        let options = Options {
            pods: true,
            ..options(&name)
        };
        let reading = read_text(&text, &options);
        let mut is = shown(&name, &reading);
        for job in &reading.jobs {
            let object = job.object.as_ref().expect("its pods are kept");
            is.push_str("--- its pods\n");
            is.push_str(&serde_saphyr::to_string(&object.template).unwrap());
            let spec = &object.template.entry("spec").unwrap().node;
            let containers = &spec.entry("containers").unwrap().node.value;
            let Value::List(containers) = containers else {
                panic!("{name} has no containers");
            };
            // What runs is said by the job alone, and its environment by the template alone.
            for field in ["command", "args"] {
                assert!(containers[0].entry(field).is_none(), "{name}: {field}");
            }
            kept += 1;
        }
        let golden = folder().join(format!("{name}.pods"));
        if std::env::var_os("MUSTER_BLESS").is_some() {
            fs::write(&golden, &is).unwrap();
        }
        let must = fs::read_to_string(&golden).unwrap_or_default();
        if is != must {
            let differs = is.lines().zip(must.lines()).find(|(one, two)| one != two);
            wrong.push(format!("{name}: {differs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(kept >= 10, "{kept}");
}

/// All leaves below a node, as the paths of their fields.
fn leaves(node: &Node, path: &str, found: &mut Vec<String>) {
    match &node.value {
        Value::Null => {}
        Value::List(items) => {
            for (i, item) in items.iter().enumerate() {
                leaves(item, &format!("{path}[{i}]"), found);
            }
        }
        Value::Object(entries) => {
            for entry in entries {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let below = match (path, entry.key.chars().all(plain)) {
                    ("", _) => entry.key.clone(),
                    (path, true) => format!("{path}.{}", entry.key),
                    (path, false) => format!("{path}[{:?}]", entry.key),
                };
                leaves(&entry.node, &below, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

/// Whether a verdict is about this field, or about one that it stands in.
fn covers(remark: &Remark, path: &str) -> bool {
    !remark.path.is_empty()
        && path
            .strip_prefix(remark.path.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[test]
fn every_field_of_an_accepted_job_has_a_verdict() {
    let (mut wrong, mut counted) = (Vec::new(), 0);
    for (name, text) in files() {
        let reading = read_text(&text, &options(&name));
        let trees = parse_all(&text).unwrap();
        let mut jobs: Vec<&Node> = Vec::new();
        for tree in &trees {
            match tree.entry("items").map(|entry| &entry.node.value) {
                Some(Value::List(items)) => jobs.extend(items),
                _ => jobs.push(tree),
            }
        }
        for (i, job) in jobs.iter().enumerate() {
            if !reading.jobs.iter().any(|found| found.place == job.place) {
                continue;
            }
            let end = jobs.get(i + 1).map_or(
                Place {
                    line: u64::MAX,
                    column: 1,
                },
                |next| next.place,
            );
            let inside: Vec<&Remark> = reading
                .remarks
                .iter()
                .filter(|remark| remark.place >= job.place && remark.place < end)
                .collect();
            let mut found = Vec::new();
            leaves(job, "", &mut found);
            counted += found.len();
            // An anchor's text stands once and counts for every place that uses it.
            let is_alias = |path: &str| text.contains(": *") && path.contains("eplicaSpecs");
            wrong.extend(
                found
                    .into_iter()
                    .filter(|path| !inside.iter().any(|remark| covers(remark, path)))
                    .filter(|path| !is_alias(path))
                    .map(|path| format!("{name}: {path}")),
            );
        }
    }
    assert!(wrong.is_empty(), "without a verdict:\n{}", wrong.join("\n"));
    assert!(counted > 200, "only {counted} fields were looked at");
}

#[test]
fn no_field_has_two_verdicts() {
    for (name, text) in files() {
        let reading = read_text(&text, &options(&name));
        let mut seen = std::collections::BTreeMap::new();
        for remark in &reading.remarks {
            // A word of a command and a container may have several reasons against them.
            let may = remark.path.is_empty()
                || remark.path.ends_with(']')
                || remark.verdict == Verdict::Refusal;
            if let Some(before) = seen.insert((remark.place, &remark.path), remark) {
                assert!(may, "{name}: {before} and {remark}");
            }
        }
    }
}

#[test]
fn what_is_accepted_is_a_job_for_core() {
    let mut jobs = 0;
    for (name, text) in files() {
        for document in read_text(&text, &options(&name)).documents() {
            let mut document = document.clone();
            document.spec.working_dir = None;
            let (_, spec) = document.check().unwrap_or_else(|e| panic!("{name}: {e:?}"));
            // What is printed means the same job when it is submitted.
            let printed = serde_saphyr::to_string(&document).unwrap();
            let again: muster_core::spec::JobDocument = serde_saphyr::from_str(&printed).unwrap();
            assert_eq!(again.check().unwrap().1, spec, "{name}");
            // A GPU is not a process, so each says its number.
            let said = document.spec.roles.iter().map(|role| role.proc_per_node);
            let said: Vec<_> = match document.spec.roles.is_empty() {
                true => vec![document.spec.proc_per_node],
                false => said.collect(),
            };
            assert!(said.iter().all(Option::is_some), "{name}: {said:?}");
            assert!(spec.replicas > 0);
            jobs += 1;
        }
    }
    assert!(jobs >= 14, "only {jobs} jobs were accepted");
}

/// One job with this text in place of its command, and what its ranks are.
fn pytorch(container: &str) -> Result<(Vec<String>, i64), String> {
    let text = format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\nspec:\n  pytorchReplicaSpecs:\n    Worker:\n      replicas: 2\n      \
         template:\n        spec:\n          containers:\n          - {{name: pytorch, image: i, {container}}}\n"
    );
    let reading = read_text(&text, &Options::default());
    match reading.documents().next() {
        Some(document) => {
            let spec = &document.spec;
            let words = [&spec.command[..], &spec.args[..]].concat();
            Ok((words, spec.proc_per_node.unwrap()))
        }
        None => Err(reading
            .remarks
            .iter()
            .filter(|remark| remark.verdict == Verdict::Refusal)
            .map(|remark| remark.message.clone())
            .collect::<Vec<_>>()
            .join("\n")),
    }
}

#[test]
fn gpus_are_not_processes() {
    let four = "resources: {limits: {nvidia.com/gpu: 4}}";
    for (command, procs) in [
        ("[python, train.py]", 1),
        ("[torchrun, train.py]", 4),
        ("[torchrun, --nproc_per_node=2, train.py]", 2),
        ("[torchrun, --nproc-per-node, gpu, train.py]", 4),
        (
            "[python, -m, torch.distributed.launch, --use_env, train.py]",
            4,
        ),
        ("[deepspeed, train.py]", 4),
        ("[bash, -c, 'cd /x && exec torchrun train.py']", 4),
        ("[bash, -c, 'python train.py | tee log']", 1),
    ] {
        let got = pytorch(&format!("command: {command}, {four}"));
        assert_eq!(got.map(|(_, procs)| procs), Ok(procs), "{command}");
    }
    let cpu = pytorch("command: [torchrun, --nproc-per-node=cpu, train.py]");
    assert!(cpu.unwrap_err().contains("one rank per CPU"));
}

#[test]
fn one_document_of_two_that_is_wrong_stops_both() {
    let text = "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata: {name: a}\nspec: {tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow, command: [python, a.py]}]}}}}}\n---\nKIND";
    let good = text.replace("KIND", "apiVersion: v1\nkind: Service\n");
    assert_eq!(read_text(&good, &Options::default()).jobs.len(), 1);
    let bad = text.replace("KIND", "apiVersion: kubeflow.org/v1\nkind: MXJob\n");
    let reading = read_text(&bad, &Options::default());
    assert!(reading.is_refused() && reading.jobs.is_empty());
}

#[test]
fn the_command_line_names_what_an_image_starts() {
    let text = fs::read_to_string(folder().join("pytorch-image.yaml")).unwrap();
    let options = Options {
        command: vec!["python3".into(), "/opt/main.py".into()],
        ..Options::default()
    };
    let reading = read_text(&text, &options);
    let document = reading.documents().next().unwrap();
    assert_eq!(document.spec.args, ["/opt/main.py", "--backend", "gloo"]);
}

#[test]
fn the_namespace_asked_for_must_be_the_files() {
    let text = fs::read_to_string(folder().join("elastic-job.yaml")).unwrap();
    let asked = |namespace: &str| {
        let options = Options {
            namespace: Some(namespace.into()),
            ..Options::default()
        };
        read_text(&text, &options).is_refused()
    };
    assert!(asked("other") && !asked("vision"));
}

/// Each of these was made to cost much: time or memory that grows faster than the text.
#[test]
fn hostile_files_are_refused_soon() {
    let many = |n: usize, line: &dyn Fn(usize) -> String| -> String { (0..n).map(line).collect() };
    let job = |container: &str| {
        format!(
            "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\nspec: {{pytorchReplicaSpecs: {{Worker: {{template: {{spec: {{containers: [{{name: pytorch, {container}}}]}}}}}}}}}}\n"
        )
    };
    let doubled = many(60, &|i| {
        format!("{{name: V{}, value: $(V{i})$(V{i})}}, ", i + 1)
    });
    let long = "x".repeat(100_000);
    for (text, why) in [
        (
            job(&format!(
                "command: [a], env: [{{name: V0, value: 0123456789abcdef}}, {doubled}]"
            )),
            "is more than 128 KiB long with its variables",
        ),
        (
            job(&format!(
                "command: [a], env: [{}]",
                many(5_000, &|i| format!("{{name: V{i}, value: x}}, "))
            )),
            "at most 256 variables are allowed",
        ),
        (
            job(&format!(
                "env: [{{name: A, value: {long}}}], command: [{}]",
                "$(A), ".repeat(5_000)
            )),
            "at most 256 items are allowed",
        ),
        (
            job(&format!(
                "env: [{{name: A, value: {long}}}], command: [bash, -c, '{} torchrun a.py']",
                "\"$A\"".repeat(5_000)
            )),
            "starts its ranks itself",
        ),
        (
            job(&format!("command: ['{}']", "$(".repeat(200_000))),
            "is more than 128 KiB long with its variables",
        ),
        (
            format!(
                "apiVersion: kubeflow.org/v1\nkind: MPIJob\nmetadata: {{name: x}}\nspec: {{mpiReplicaSpecs: {{Launcher: {{template: {{spec: {{containers: \
                 [{{name: l, command: [bash, -c, '{}']}}]}}}}}}, Worker: {{replicas: 1, template: {{spec: {{containers: [{{name: w}}]}}}}}}}}}}\n",
                "horovodrun -np 99 ".to_owned() + &"horovodrun -a ".repeat(9_000)
            ),
            "asks horovodrun for 99 ranks",
        ),
        (
            format!(
                "apiVersion: kubeflow.org/v1\nkind: MPIJob\nmetadata: {{name: x}}\nspec: {{mpiReplicaSpecs: {{Launcher: {{template: {{spec: {{containers: \
                 [{{name: l, command: [bash, -c, '{}']}}]}}}}}}, Worker: {{replicas: 1, template: {{spec: {{containers: [{{name: w}}]}}}}}}}}}}\n",
                "mpirun -bind-to none a ".repeat(30_000)
            ),
            "gets a second dash",
        ),
        (
            job("command: [a]").replace(
                "containers:",
                &format!(
                    "initContainers: [{{name: i, command: [sh, -c, '{}{}']}}], containers:",
                    "until ".repeat(50_000),
                    "! ".repeat(50_000)
                ),
            ),
            "too many loops in loops",
        ),
        (
            job("command: [a]").replace(
                "containers:",
                &format!(
                    "initContainers: [{{name: i, command: [sh, -c, '{}']}}], containers:",
                    "$(".repeat(50_000)
                ),
            ),
            "i may do more than wait",
        ),
        (
            job(&many(15_000, &|i| format!("field{i}: 1, "))),
            "unknown field",
        ),
        (
            job(&format!(
                "command: [a], volumeMounts: [{}]",
                many(5_000, &|i| format!("{{name: v{i}, mountPath: /{i}}}, "))
            )),
            "names no volume of the pod",
        ),
    ] {
        let reading = read_text(&text, &Options::default());
        assert!(
            reading
                .remarks
                .iter()
                .any(|remark| remark.message.contains(why)),
            "{why}: {}",
            reading
                .remarks
                .iter()
                .take(3)
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        );
    }
}
