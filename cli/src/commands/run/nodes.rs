//! Which nodes a job may have: kubectl's selectors, and the lists of `sbatch`.

use clap::Args;
use muster_core::spec::{
    Affinity, SpecDocument, Toleration,
    selection::{NodeAffinity, NodeSelectorTerms, Term},
};
use muster_foreign::names;

use crate::selector::Selector;

const HEADING: &str = "Nodes";

#[derive(Debug, Default, Args)]
pub(super) struct ChosenNodes {
    /// Always run on a multiple of so many nodes: pipeline stages, expert groups [default: 1]
    #[arg(long, alias = "multiple_of", value_name = "N", help_heading = HEADING)]
    multiple_of: Option<i64>,

    /// Only nodes with these labels, as 'pool=h100', 'zone in (a,b),!spot' or
    /// 'nvidia.com/gpu.product=NVIDIA-H200' (repeatable; all must hold; `muster describe node` shows
    /// a node's labels)
    #[arg(long, alias = "node_selector", value_name = "SELECTOR", value_parser = Selector::read, help_heading = HEADING)]
    node_selector: Vec<Selector>,

    /// Only these nodes, as n1,n[03-10] (repeatable). Unlike Slurm's, the list is a limit: the job may get
    /// fewer of them, and never another
    #[arg(long, alias = "node-list", value_name = "NODES", help_heading = HEADING)]
    nodelist: Vec<String>,

    /// None of these nodes, as n1,n[03-10] (repeatable)
    #[arg(long, value_name = "NODES", help_heading = HEADING)]
    exclude: Vec<String>,

    /// Only nodes that have the same value of this label, as topology.kubernetes.io/zone
    #[arg(long, alias = "required_topology", value_name = "KEY", help_heading = HEADING)]
    required_topology: Option<String>,

    /// Nodes with the same value of this label, if that costs no node (repeatable, the finest first)
    #[arg(long, alias = "preferred_topology", value_name = "KEY", help_heading = HEADING)]
    preferred_topology: Vec<String>,

    /// Also use nodes with this taint: KEY[=VALUE][:EFFECT] (repeatable). Without VALUE or EFFECT any matches;
    /// node.kubernetes.io/unschedulable also allows nodes that Muster has cordoned
    #[arg(long, value_name = "TAINT", help_heading = HEADING)]
    toleration: Vec<String>,
}

impl ChosenNodes {
    /// Writes them into a document.
    pub(super) fn write(&self, spec: &mut SpecDocument) -> Result<(), String> {
        spec.multiple_of = self.multiple_of;
        let mut term = Term::default();
        for selector in &self.node_selector {
            let (labels, expressions) = selector.clone().into_parts();
            for (key, value) in labels {
                let before = spec.node_selector.get(&key);
                if let Some(before) = before.filter(|before| **before != value) {
                    return Err(format!(
                        "--node-selector: {key}={before} and {key}={value}: no node has both"
                    ));
                }
                spec.node_selector.insert(key, value);
            }
            term.match_expressions.extend(expressions);
        }
        if !term.match_expressions.is_empty() {
            spec.affinity = Some(Affinity {
                node_affinity: Some(NodeAffinity {
                    required: Some(NodeSelectorTerms {
                        node_selector_terms: vec![term],
                    }),
                    preferred: Vec::new(),
                }),
            });
        }
        spec.node_list = expanded("--nodelist", &self.nodelist)?;
        spec.exclude_nodes = expanded("--exclude", &self.exclude)?;
        spec.required_topology.clone_from(&self.required_topology);
        spec.preferred_topology.clone_from(&self.preferred_topology);
        let tolerations = self.toleration.iter();
        spec.tolerations = tolerations.map(|text| Toleration::read(text)).collect();
        Ok(())
    }
}

/// The names in some lists, as `n1,n[03-10]`.
fn expanded(flag: &str, lists: &[String]) -> Result<Vec<String>, String> {
    let words = lists.iter().flat_map(|list| names::parts(list));
    let words = words.map(str::trim).filter(|word| !word.is_empty());
    let names = names::expand_all(words).map_err(|why| format!("{flag}: {why}"))?;
    match names.is_empty() && !lists.is_empty() {
        // A variable of a shell that is not set must not mean all nodes.
        true => Err(format!("{flag}: names no node")),
        false => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_selectors_become_fields_of_the_job() {
        let read = |text| Selector::read(text).unwrap();
        let chosen = ChosenNodes {
            multiple_of: Some(4),
            node_selector: vec![read("pool=a,!spot"), read("zone in (x,y)")],
            nodelist: vec!["n1,n[03-04]".into(), "m[1,2]b".into()],
            exclude: vec![" n3 ,".into()],
            required_topology: Some("zone".into()),
            preferred_topology: vec!["rack".into()],
            toleration: vec!["dedicated=a".into()],
        };
        let mut spec = SpecDocument::default();
        chosen.write(&mut spec).unwrap();
        assert_eq!(spec.node_list, ["n1", "n03", "n04", "m1b", "m2b"]);
        assert_eq!(spec.exclude_nodes, ["n3"]);
        assert_eq!(spec.multiple_of, Some(4));
        let levels = (spec.required_topology, spec.preferred_topology);
        assert_eq!(levels, (Some("zone".into()), vec!["rack".into()]));
        assert_eq!(spec.node_selector["pool"], "a");
        let affinity = spec.affinity.unwrap().node_affinity.unwrap();
        let terms = affinity.required.unwrap().node_selector_terms;
        assert_eq!(terms.len(), 1, "all must hold");
        assert_eq!(terms[0].match_expressions.len(), 2);

        let both = ChosenNodes {
            node_selector: vec![read("pool=a"), read("pool=b")],
            ..ChosenNodes::default()
        };
        let why = both.write(&mut SpecDocument::default()).unwrap_err();
        assert!(why.contains("pool=a and pool=b"), "{why}");
        for wrong in ["n[1", "", ","] {
            let wrong = ChosenNodes {
                nodelist: vec![wrong.into()],
                ..ChosenNodes::default()
            };
            let why = wrong.write(&mut SpecDocument::default()).unwrap_err();
            assert!(why.starts_with("--nodelist: "), "{why}");
        }
    }
}
