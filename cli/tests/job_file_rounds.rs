//! A MusterJob with several mistakes: all are told at once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use muster_cli::jobfile::{Reader, read};

/// A mistake hides no other one. Each is one line, and what the file with that line alone is refused for is told
/// in every file that has it, and nothing else.
#[test]
fn all_mistakes_of_a_job_are_told_in_one_round() {
    const WHOLE: &str = "\
apiVersion: muster.dev/v1alpha1
kind: MusterJob
metadata:
  name: digits
spec:
  replicas: 2
  minReplicas: 1
  gpusPerNode: 0
  command: [python3]
  args: [train.py]
  env: [{name: A, value: b}]
  priority: 0
  restartPolicy: {maxRestarts: 1}
  stopGracePeriod: 10s
  progress: synchronous
  launch: auto
  rules: []
  suspend: false
";
    const MISTAKES: [(&str, &str); 24] = [
        (
            "apiVersion: muster.dev/v1alpha1",
            "apiVersion: muster.dev/v1",
        ),
        ("kind: MusterJob", "kind: MusterJobs"),
        ("kind: MusterJob", "kid: MusterJob"),
        ("  name: digits", "  name: Digits"),
        ("  name: digits", "  nmae: 1.10"),
        ("  replicas: 2", "  replicas: 0"),
        ("  replicas: 2", "  nnodes: 5000"),
        ("  replicas: 2", "  replicas: two"),
        ("  minReplicas: 1", "  minReplica: x"),
        ("  minReplicas: 1", "  minReplicas: 0x"),
        ("  gpusPerNode: 0", "  gpusPerNode: -1"),
        ("  gpusPerNode: 0", "  gpus: 300"),
        ("  command: [python3]", "  command: [\"\"]"),
        ("  command: [python3]", "  comand: [1]"),
        ("  args: [train.py]", "  args: [train.py, no]"),
        (
            "  env: [{name: A, value: b}]",
            "  env: [{name: RANK, value: b}, {nam: B}]",
        ),
        ("  priority: 0", "  priority: 0777"),
        (
            "  restartPolicy: {maxRestarts: 1}",
            "  restartPolicy: {maxRestart: -1}",
        ),
        ("  stopGracePeriod: 10s", "  stopGracePeriod: 20m"),
        ("  stopGracePeriod: 10s", "  gracePeriod: 10 s"),
        ("  progress: synchronous", "  progress: sync"),
        ("  launch: auto", "  launch: warm"),
        ("  rules: []", "  rules: [{when: failure, then: stop}]"),
        ("  suspend: false", "  suspend: \"false\""),
    ];
    let told = |mistakes: &[usize]| -> Vec<(u64, String)> {
        let mut lines: Vec<&str> = WHOLE.lines().collect();
        for mistake in mistakes {
            let (good, bad) = MISTAKES[*mistake];
            lines[WHOLE.lines().position(|line| line == good).unwrap()] = bad;
        }
        let text = lines.join("\n");
        let reader = Reader {
            here: "/here".into(),
            ..Reader::default()
        };
        let bad = read("job.yaml", text.as_bytes(), &reader);
        let problems = bad.err().map(|bad| bad.problems).unwrap_or_default();
        let problems = problems.into_iter();
        problems
            .map(|problem| (problem.place.line, problem.message))
            .collect()
    };
    assert_eq!(told(&[]), []);
    let alone: Vec<_> = (0..MISTAKES.len()).map(|one| told(&[one])).collect();
    let apart = |one: usize, two: usize| MISTAKES[one].0 != MISTAKES[two].0;
    let mut wrong = Vec::new();
    let mut check = |chosen: &[usize]| {
        let found = told(chosen);
        let mut must: Vec<_> = chosen.iter().flat_map(|one| alone[*one].clone()).collect();
        let mut sorted = found.clone();
        must.sort();
        sorted.sort();
        let lines: Vec<u64> = found.iter().map(|(line, _)| *line).collect();
        if must != sorted || !lines.is_sorted() {
            let shown: Vec<&str> = chosen.iter().map(|one| MISTAKES[*one].1).collect();
            wrong.push(format!("{shown:?}\n  is {found:?}\n  must {must:?}"));
        }
    };
    for one in 0..MISTAKES.len() {
        assert!(!alone[one].is_empty(), "{}", MISTAKES[one].1);
        let mut many = vec![one];
        for two in (0..MISTAKES.len()).filter(|two| apart(one, *two)) {
            check(&[one, two]);
            if many.iter().all(|other| apart(*other, two)) {
                many.push(two);
            }
        }
        assert!(many.len() > 14);
        check(&many);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
