use super::*;
use crate::{Options, Remark, Verdict, tree::parse_all};

const SITE: &str = "nodeLabels: {gpu: H100, disks: \"4\", zone: a, old: null}";

/// The verdicts about the affinity of a job whose nodes are those of the site map.
fn judged(affinity: &str) -> Vec<Remark> {
    let site = Site::read(&parse_all(SITE).unwrap()[0]).unwrap();
    let options = Options {
        site,
        ..Options::default()
    };
    let text = format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\nspec: {{pytorchReplicaSpecs: {{Worker: {{template: {{spec: {{containers: [{{name: pytorch, \
         command: [python, a.py]}}], affinity: {affinity}}}}}}}}}}}\n"
    );
    let trees = parse_all(&text).unwrap();
    let reading = crate::read(&trees.iter().collect::<Vec<_>>(), 0, &options);
    let about = reading.remarks.into_iter();
    about
        .filter(|remark| remark.path.contains("affinity"))
        .collect()
}

/// What is said of one term after the other.
fn required(terms: &str) -> Result<String, Vec<String>> {
    let remarks = judged(&format!(
        "{{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: [{terms}]}}}}}}"
    ));
    let refused = remarks
        .iter()
        .filter(|remark| remark.verdict == Verdict::Refusal);
    let refused: Vec<String> = refused.map(|remark| remark.message.clone()).collect();
    match refused.is_empty() {
        true => Ok(remarks[0].message.clone()),
        false => Err(refused),
    }
}

fn expressions(all: &str) -> String {
    format!("{{matchExpressions: [{all}]}}")
}

#[test]
fn what_every_node_meets_is_met() {
    for all in [
        "{key: gpu, operator: In, values: [A100, H100]}",
        "{key: gpu, operator: NotIn, values: [A100]}",
        "{key: old, operator: NotIn, values: [A100]}",
        "{key: gpu, operator: Exists}",
        "{key: old, operator: DoesNotExist}",
        "{key: disks, operator: Gt, values: ['3']}",
        "{key: disks, operator: Lt, values: ['5']}",
        "{key: gpu, operator: Exists}, {key: zone, operator: In, values: [a]}",
    ] {
        let said = required(&expressions(all));
        assert_eq!(
            said.as_deref(),
            Ok("is met by every node, says the site map"),
            "{all}"
        );
    }
    // One term is enough.
    let two = format!(
        "{}, {}",
        expressions("{key: unheard, operator: Exists}"),
        expressions("{key: gpu, operator: Exists}")
    );
    assert!(required(&two).is_ok());
}

#[test]
fn what_no_node_meets_is_refused_with_what_the_map_says() {
    for (all, why) in [
        (
            "{key: gpu, operator: In, values: [A100]}",
            "every node has gpu: H100, says the site map",
        ),
        (
            "{key: gpu, operator: NotIn, values: [H100]}",
            "every node has gpu: H100, says the site map",
        ),
        (
            "{key: gpu, operator: DoesNotExist}",
            "every node has gpu: H100, says the site map",
        ),
        (
            "{key: old, operator: Exists}",
            "no node has old, says the site map",
        ),
        (
            "{key: disks, operator: Gt, values: ['4']}",
            "every node has disks: 4, says the site map",
        ),
        (
            "{key: gpu, operator: Lt, values: ['4']}",
            "every node has gpu: H100, says the site map",
        ),
        (
            "{key: gpu, operator: Exists}, {key: zone, operator: In, values: [b]}",
            "every node has zone: a, says the site map",
        ),
        ("", "a term that asks for nothing fits no node"),
    ] {
        let must = vec![format!("asks for certain nodes, and {why}")];
        assert_eq!(required(&expressions(all)), Err(must), "{all}");
    }
    let by_field = required("{matchFields: [{key: spec.x, operator: In, values: [n1]}]}");
    assert!(by_field.unwrap_err()[0].contains("In or NotIn of metadata.name"));
}

/// The job that a file with this in its pod becomes, and what is said of the file.
fn job(pod: &str) -> (SpecDocument, Vec<Remark>) {
    let site = Site::read(&parse_all(SITE).unwrap()[0]).unwrap();
    let options = Options {
        site,
        ..Options::default()
    };
    let text = format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\nspec: {{pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {{spec: {{containers: \
         [{{name: pytorch, command: [python, a.py]}}], {pod}}}}}}}}}}}\n"
    );
    let trees = parse_all(&text).unwrap();
    let reading = crate::read(&trees.iter().collect::<Vec<_>>(), 0, &options);
    let job = reading.jobs.into_iter().next();
    let remarks = reading.remarks;
    (
        job.unwrap_or_else(|| panic!("{remarks:?}")).document.spec,
        remarks,
    )
}

/// What becomes of a job whose master and workers say this of their nodes.
fn of_both(master: &str, worker: &str) -> Result<SpecDocument, Vec<String>> {
    let pod = |more: &str| {
        format!(
            "{{template: {{spec: {{containers: [{{name: pytorch, command: [python, a.py]}}]{more}}}}}}}"
        )
    };
    let text = format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: x}}\nspec: {{pytorchReplicaSpecs: {{Master: {}, Worker: {}}}}}\n",
        pod(master),
        pod(worker)
    );
    let trees = parse_all(&text).unwrap();
    let reading = crate::read(&trees.iter().collect::<Vec<_>>(), 0, &Options::default());
    let refused = reading.remarks.iter();
    let refused = refused.filter(|remark| remark.verdict == Verdict::Refusal);
    let refused: Vec<String> = refused.map(|remark| remark.message.clone()).collect();
    let job = reading.jobs.into_iter().next();
    job.map(|job| job.document.spec).ok_or(refused)
}

#[test]
fn all_pods_of_a_job_choose_among_the_same_nodes() {
    let gpu = ", nodeSelector: {gpu: a}";
    let same = of_both(gpu, gpu).unwrap();
    for one in [of_both("", gpu), of_both(gpu, "")] {
        assert_eq!(one.unwrap().node_selector, same.node_selector);
    }
    let refused = of_both(gpu, ", nodeSelector: {gpu: b}").unwrap_err();
    assert!(refused[0].contains("asks for other nodes"), "{refused:?}");
    let wish = format!(
        ", affinity: {{nodeAffinity: {{{PREFERRED}: [{{weight: 1, preference: {{matchExpressions: [{{key: disk, operator: Exists}}]}}}}]}}}}"
    );
    let spec = of_both(gpu, &wish).unwrap();
    assert_eq!(spec.node_selector, same.node_selector);
    assert!(spec.affinity.is_some(), "a wish refuses nothing");
}

#[test]
fn what_the_map_does_not_say_the_job_asks_for() {
    let (spec, remarks) = job("nodeSelector: {pool: train, zone: a}");
    assert_eq!(spec.node_selector, [("pool".into(), "train".into())].into());
    assert!(remarks.iter().any(|remark| remark.path.ends_with("pool") && remark.message == "is spec.nodeSelector"));

    let terms = "[{matchExpressions: [{key: gpu, operator: In, values: [H100]}, {key: rack, operator: Exists}]}, \
                 {matchExpressions: [{key: zone, operator: In, values: [b]}]}, {matchFields: [{key: metadata.name, operator: NotIn, values: [n1]}]}]";
    let wishes = "[{weight: 7, preference: {matchExpressions: [{key: disk, operator: Exists}]}}, {weight: 1, preference: {matchExpressions: [{key: gpu, operator: Exists}]}}]";
    let (spec, _) = job(&format!(
        "affinity: {{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerms: {terms}}}, {PREFERRED}: {wishes}}}}}"
    ));
    let affinity = spec.affinity.unwrap().node_affinity.unwrap();
    let said: Vec<String> = affinity
        .required
        .unwrap()
        .node_selector_terms
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        said,
        ["rack Exists", "metadata.name NotIn (n1)"],
        "the term of zone b fits no node"
    );
    let wishes: Vec<String> = affinity
        .preferred
        .iter()
        .map(|wish| format!("{} {}", wish.weight, wish.preference))
        .collect();
    assert_eq!(wishes, ["7 disk Exists"], "all nodes have a gpu");
}

#[test]
fn mistakes_in_an_expression_are_told() {
    for (all, why) in [
        (
            "{key: gpu, operator: in, values: [x]}",
            "is \"in\", must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt",
        ),
        ("{key: gpu, operator: In}", "In needs values"),
        (
            "{key: gpu, operator: Exists, values: [x]}",
            "Exists takes no values",
        ),
        (
            "{key: gpu, operator: Gt, values: [x]}",
            "Gt needs one whole number, in quotes, as its values",
        ),
        (
            "{key: gpu, operator: Gt, values: [3]}",
            "is the number 3, must be a text; write \"3\"",
        ),
        (
            "{key: gpu, value: [x], operator: In}",
            "unknown field; did you mean values?",
        ),
        ("{operator: Exists}", "has no key"),
    ] {
        let said = required(&expressions(all)).unwrap_err();
        assert!(said.iter().any(|message| message == why), "{all}: {said:?}");
    }
    let terms = judged(&format!(
        "{{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerm: [{{matchFields: [{{key: metadata.name, operator: In, values: [a]}}]}}]}}}}}}"
    ));
    let said: Vec<&str> = terms.iter().map(|remark| &*remark.message).collect();
    assert!(
        said.contains(&"unknown field; did you mean nodeSelectorTerms?"),
        "{said:?}"
    );
    assert!(
        !said.iter().any(|why| why.starts_with("has no")),
        "{said:?}"
    );
}

#[test]
fn wishes_are_notes() {
    for (affinity, verdict) in [
        (
            format!("{{nodeAffinity: {{{PREFERRED}: [{{weight: 1}}]}}}}"),
            Verdict::Note,
        ),
        (
            format!("{{podAffinity: {{{PREFERRED}: [{{weight: 1}}]}}}}"),
            Verdict::Note,
        ),
        (
            format!("{{podAffinity: {{{REQUIRED}: [{{topologyKey: zone}}]}}}}"),
            Verdict::Warning,
        ),
        (
            format!("{{podAntiAffinity: {{{REQUIRED}: [{{topologyKey: zone}}]}}}}"),
            Verdict::Note,
        ),
    ] {
        assert_eq!(judged(&affinity)[0].verdict, verdict, "{affinity}");
    }
}
