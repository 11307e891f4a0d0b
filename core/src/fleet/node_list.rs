//! The list of nodes as a person reads it: which nodes a search finds, those with trouble first, the part that is asked for,
//! and the sums over all nodes.
//!
//! The coordinator looks at what it has published. The command line looks at what an older coordinator has sent it. Both
//! show a node as [`Listed`], so both find the same. What a caller may not see is no part of it, and cannot be found.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    fleet::view::{Liveness, NodeView},
    health::{Finding, Severity, Subject},
    node_report::Gpu,
};

/// A node, as far as the list needs it.
pub trait Listed {
    fn name(&self) -> &str;
    fn liveness(&self) -> Liveness;
    fn is_cordoned(&self) -> bool;
    /// Whether the node, or a part of it, gets no new work because of a finding.
    fn is_unhealthy(&self) -> bool;
    fn gpus(&self) -> Gpus;
    /// Adds its host, its labels, the models of its GPUs and the names of its jobs.
    fn add_texts(&self, texts: &mut Texts);

    /// Whether nothing is wrong with it.
    fn is_well(&self) -> bool {
        self.liveness() == Liveness::Ready && !self.is_cordoned() && !self.is_unhealthy()
    }

    /// Its state in words: `Ready`, or `Lost, cordoned, unhealthy`.
    fn state_in_words(&self) -> String {
        let mut words = match self.liveness() {
            Liveness::Ready => "Ready",
            Liveness::Suspect => "Suspect",
            Liveness::Lost => "Lost",
            Liveness::Unknown => "Unknown",
        }
        .to_owned();
        if self.is_cordoned() {
            words.push_str(", cordoned");
        }
        if self.is_unhealthy() {
            words.push_str(", unhealthy");
        }
        words
    }
}

/// Numbers of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    pub all: usize,
    pub held_by_jobs: usize,
    /// They get no new work because of a finding.
    pub withheld: usize,
}

/// Which nodes are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// Only nodes with this text, in whatever case, in their name, their state or one of their texts. Empty: all.
    pub text: &'a str,
    /// How many of those that are found to leave out at the beginning.
    pub skip: usize,
    /// The most nodes to return.
    pub most: usize,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    pub nodes: Vec<T>,
    /// How many nodes have the text, with those that were left out.
    pub matching: usize,
    pub sums: Sums,
}

/// How many of all nodes are in which state, whether they are found or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub nodes: usize,
    pub ready: usize,
    pub suspect: usize,
    pub lost: usize,
    pub cordoned: usize,
    pub unhealthy: usize,
    pub gpus: Gpus,
}

/// Searches the nodes. Those with trouble come first, then by name.
pub fn find<T: Listed>(nodes: impl IntoIterator<Item = T>, wanted: Wanted<'_>) -> Found<T> {
    let (mut sums, mut search) = (Sums::default(), Texts::default());
    let text = wanted.text.to_lowercase();
    let (mut trouble, mut well) = (Vec::new(), Vec::new());
    for node in nodes {
        sums.add(&node);
        if !search.finds(&text, &node) {
            continue;
        }
        match node.is_well() {
            true => well.push(node),
            false => trouble.push(node),
        }
    }
    // They usually come in this order, and then it costs nothing.
    trouble.sort_by(|a, b| a.name().cmp(b.name()));
    well.sort_by(|a, b| a.name().cmp(b.name()));
    let matching = trouble.len() + well.len();
    let found = trouble.into_iter().chain(well);
    Found {
        nodes: found.skip(wanted.skip).take(wanted.most).collect(),
        matching,
        sums,
    }
}

impl Sums {
    fn add(&mut self, node: &impl Listed) {
        self.nodes += 1;
        match node.liveness() {
            Liveness::Ready => self.ready += 1,
            Liveness::Suspect => self.suspect += 1,
            Liveness::Lost => self.lost += 1,
            Liveness::Unknown => {}
        }
        self.cordoned += usize::from(node.is_cordoned());
        self.unhealthy += usize::from(node.is_unhealthy());
        let gpus = node.gpus();
        self.gpus.all += gpus.all;
        self.gpus.held_by_jobs += gpus.held_by_jobs;
        self.gpus.withheld += gpus.withheld;
    }
}

/// Ends each text, so that nothing is found across two of them.
const END: char = '\0';

/// The texts of one node. The memory is used again for the next, because there are ten thousand.
#[derive(Debug, Default)]
pub struct Texts(String);

impl Texts {
    pub fn add(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push(END);
    }

    /// Adds a label as it is written: `KEY=VALUE`.
    pub fn add_label(&mut self, key: &str, value: &str) {
        self.0.push_str(key);
        self.0.push('=');
        self.add(value);
    }

    /// Adds the models of GPUs. Most nodes have eight of one.
    pub fn add_models<'a>(&mut self, models: impl Iterator<Item = &'a str>) {
        let mut last = "";
        for model in models {
            if model != last {
                self.add(model);
            }
            last = model;
        }
    }

    fn finds(&mut self, lowercase: &str, node: &impl Listed) -> bool {
        if lowercase.is_empty() {
            return true;
        }
        if lowercase.contains(END) {
            return false;
        }
        self.0.clear();
        self.add(node.name());
        self.add(&node.state_in_words());
        node.add_texts(self);
        match self.0.is_ascii() {
            true => {
                self.0.make_ascii_lowercase();
                self.0.contains(lowercase)
            }
            false => self.0.to_lowercase().contains(lowercase),
        }
    }
}

/// A node that the engine has published, for a caller who may see the jobs of some namespaces.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    pub view: &'a Arc<NodeView>,
    pub may_see: &'a dyn Fn(&str) -> bool,
}

impl Seen<'_> {
    fn all_gpus(&self) -> &[Gpu] {
        match &self.view.place {
            Some(place) => &place.gpus,
            None => &self.view.report.gpus,
        }
    }

    /// Its findings that keep work away.
    fn grave(&self) -> impl Iterator<Item = &Finding> {
        let view = self.view;
        let others = view.object.iter().flat_map(|object| &object.findings);
        let others = others.chain(view.place.iter().flat_map(|place| &place.findings));
        let all = view.report.health.findings.iter().chain(others);
        all.filter(|finding| finding.severity >= Severity::Drain)
    }
}

impl Listed for Seen<'_> {
    fn name(&self) -> &str {
        self.view.record.name.as_str()
    }

    fn liveness(&self) -> Liveness {
        self.view.liveness
    }

    fn is_cordoned(&self) -> bool {
        self.view.record.cordon.is_some()
    }

    fn is_unhealthy(&self) -> bool {
        self.grave().next().is_some()
    }

    fn gpus(&self) -> Gpus {
        let runs = &self.view.runs;
        let held: BTreeSet<&String> = runs.iter().flat_map(|run| &run.gpus).collect();
        let withheld: BTreeSet<&String> = self
            .grave()
            .filter_map(|finding| match &finding.subject {
                Subject::Gpu(uuid) => Some(uuid),
                _ => None,
            })
            .collect();
        Gpus {
            all: self.all_gpus().len(),
            held_by_jobs: held.len(),
            withheld: withheld.len(),
        }
    }

    fn add_texts(&self, texts: &mut Texts) {
        let view = self.view;
        if let Some(place) = &view.place {
            texts.add(place.host.as_str());
        }
        for (key, value) in view.report.labels_and_facts() {
            texts.add_label(key, &value);
        }
        texts.add_models(self.all_gpus().iter().map(|gpu| gpu.model.as_str()));
        let jobs = view.runs.iter().filter_map(|run| run.job.as_ref());
        for job in jobs.filter(|job| (self.may_see)(&job.namespace)) {
            texts.add(&job.name);
        }
    }
}

#[cfg(test)]
mod tests;
