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
    let by_name = required("{matchFields: [{key: metadata.name, operator: In, values: [n1]}]}");
    assert!(by_name.unwrap_err()[0].contains("by the name of a node"));
    let unheard = required(&expressions("{key: a.b/c, operator: Exists}"));
    assert!(unheard.unwrap_err()[0].contains("`nodeLabels: {a.b/c: VALUE}` in the site map"));
    let two = required(&expressions(
        "{key: z, operator: Exists}, {key: gpu, operator: Exists}, {key: b, operator: Exists}",
    ));
    assert!(two.unwrap_err()[0].contains("`nodeLabels: {b: VALUE, z: VALUE}`"));
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
        "{{nodeAffinity: {{{REQUIRED}: {{nodeSelectorTerm: [{{matchFields: [{{}}]}}]}}}}}}"
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
