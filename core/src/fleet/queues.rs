//! The operator's tree of queues (`--queues FILE`): quotas in GPUs, and what may be borrowed.
//!
//! A queue at the bottom of the tree has the jobs of the namespaces that it names. If several queues name a namespace, its
//! jobs may say which they use. Its quota is what its jobs get whatever
//! others do. Beyond that they *borrow* what other queues of the same parent do not use, and then what their parent may
//! borrow. The words and the rules are those of Kueue's cohorts (`pkg/cache/scheduler/resource_node.go`): of a queue's quota
//! `lendingLimit` GPUs at most are of use to others, and it holds `borrowingLimit` GPUs at most beyond its quota.
//!
//! A queue that has queues below it may have a larger quota than they have together: the rest belongs to all of them. A
//! queue at the top borrows nothing.
//!
//! All of this is arithmetic about how many GPUs the jobs of each queue hold. It knows no jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Stands for every namespace that no queue names.
pub const OTHERS: &str = "*";

/// Each costs some additions whenever a job asks for nodes. A company has teams, and teams have projects.
pub const QUEUES_MAX: usize = 1_000;

/// What an operator says of one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    pub name: String,
    /// The place of its parent in the list, which is before its own.
    pub parent: Option<usize>,
    /// GPUs. `None`: what the queues below it have together.
    pub quota: Option<u32>,
    /// GPUs beyond the quota. `None`: as many as others do not use.
    pub borrowing_limit: Option<u32>,
    /// GPUs of the quota that others may use. `None`: all of it.
    pub lending_limit: Option<u32>,
    /// [`OTHERS`] stands for all that no queue names.
    pub namespaces: BTreeSet<String>,
    /// The highest priority that its jobs may have, and those of the queues below it.
    pub max_priority: Option<i32>,
    /// What it has used is divided by this before it is compared with that of the queues beside it. `None`: its quota.
    pub weight: Option<u32>,
}

/// A checked tree of queues. The default has none, and then nothing is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    all: Vec<Checked>,
    /// The place of each by its name.
    names: BTreeMap<String, usize>,
    /// The place of the first queue that names a namespace.
    first: BTreeMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Checked {
    queue: Queue,
    quota: u32,
    /// What it may use by itself: its quota without what queues below it keep for themselves.
    pool: u32,
    /// Of its pool, what nobody else may use.
    guaranteed: u32,
    children: Vec<usize>,
}

/// What is wrong with one queue: its place in the list, a field, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub queue: usize,
    pub field: &'static str,
    pub why: String,
}

/// A queue, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId(usize);

/// How many GPUs the jobs of each queue hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage(Vec<u32>);

/// Why a job is in no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoQueue<'a> {
    /// None has jobs of its namespace.
    OfNamespace(&'a str),
    /// There is none of the name that it says.
    Named(&'a str),
    /// The one that it names has no jobs of its namespace.
    ForNamespace { queue: &'a str, namespace: &'a str },
}

impl fmt::Display for NoQueue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoQueue::OfNamespace(namespace) => {
                write!(f, "no queue has jobs of namespace {namespace}")
            }
            NoQueue::Named(queue) => write!(f, "there is no queue {queue}"),
            NoQueue::ForNamespace { queue, namespace } => {
                write!(f, "queue {queue} has no jobs of namespace {namespace}")
            }
        }?;
        f.write_str(" (--queues of the coordinator)")
    }
}

impl Queues {
    /// Checks the queues. Each parent stands before its children.
    pub fn new(queues: Vec<Queue>) -> Result<Queues, Vec<Wrong>> {
        let mut wrong = check(&queues);
        let mut all: Vec<Checked> = queues.into_iter().map(Checked::from).collect();
        for at in (0..all.len()).rev() {
            let children = || all.iter().filter(|one| one.queue.parent == Some(at));
            let below: u64 = children().map(|one| u64::from(one.quota)).sum();
            let quota = all[at].queue.quota.map_or(below, u64::from);
            if quota < below {
                wrong.push(Wrong {
                    queue: at,
                    field: "quota",
                    why: format!(
                        "is {quota}, and the queues below it have {below} together: raise it, or lower theirs"
                    ),
                });
            }
            let passed_up: u64 = children()
                .map(|one| u64::from(one.pool - one.guaranteed))
                .sum();
            let pool = quota.saturating_sub(below) + passed_up;
            let ids = (0..all.len()).filter(|child| all[*child].queue.parent == Some(at));
            let children = ids.collect();
            let one = &mut all[at];
            one.quota = u32::try_from(quota).unwrap_or(u32::MAX);
            one.pool = u32::try_from(pool).unwrap_or(u32::MAX);
            let lends = one.queue.lending_limit;
            one.guaranteed = lends.map_or(0, |lends| one.pool.saturating_sub(lends));
            one.children = children;
        }
        match wrong.is_empty() {
            true => Ok(Queues::of_checked(all)),
            false => Err(wrong),
        }
    }

    fn of_checked(all: Vec<Checked>) -> Queues {
        let (mut names, mut first) = (BTreeMap::new(), BTreeMap::new());
        for (at, one) in all.iter().enumerate() {
            names.insert(one.queue.name.clone(), at);
            for namespace in &one.queue.namespaces {
                first.entry(namespace.clone()).or_insert(at);
            }
        }
        Queues { all, names, first }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The queue of a job of this namespace: the one that it names, else the first that names its namespace, else the first
    /// that has all others.
    pub(crate) fn of<'a>(
        &self,
        namespace: &'a str,
        named: Option<&'a str>,
    ) -> Result<QueueId, NoQueue<'a>> {
        let has = |one: &Checked, name: &str| one.queue.namespaces.contains(name);
        let first = |name: &str| self.first.get(name).copied();
        let found = match named {
            None => first(namespace)
                .or_else(|| first(OTHERS))
                .ok_or(NoQueue::OfNamespace(namespace))?,
            Some(queue) => {
                let at = *self.names.get(queue).ok_or(NoQueue::Named(queue))?;
                let one = &self.all[at];
                // A namespace that some queue names is none of the others.
                let is_other = first(namespace).is_none() && has(one, OTHERS);
                match has(one, namespace) || is_other {
                    true => at,
                    false => return Err(NoQueue::ForNamespace { queue, namespace }),
                }
            }
        };
        Ok(QueueId(found))
    }

    /// All queues, each behind its parent.
    pub(crate) fn all(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        let all = self.all.iter().enumerate();
        all.map(|(at, one)| (QueueId(at), &one.queue))
    }

    pub(crate) fn parent(&self, queue: QueueId) -> Option<QueueId> {
        self.all[queue.0].queue.parent.map(QueueId)
    }

    /// Whether it is at the bottom of the tree.
    pub(crate) fn has_jobs(&self, queue: QueueId) -> bool {
        self.all[queue.0].children.is_empty()
    }

    pub(crate) fn name(&self, queue: QueueId) -> &str {
        &self.all[queue.0].queue.name
    }

    pub(crate) fn quota(&self, queue: QueueId) -> u32 {
        self.all[queue.0].quota
    }

    pub(crate) fn borrowing_limit(&self, queue: QueueId) -> Option<u32> {
        self.all[queue.0].queue.borrowing_limit
    }

    /// By what its use is divided where it is compared with others. At least 1.
    pub(crate) fn weight(&self, queue: QueueId) -> u32 {
        let one = &self.all[queue.0];
        one.queue.weight.unwrap_or(one.quota).max(1)
    }

    pub(crate) fn has_parent(&self, queue: QueueId) -> bool {
        self.all[queue.0].queue.parent.is_some()
    }

    /// The highest priority that jobs of this queue may have, and the queue that says so.
    pub(crate) fn max_priority(&self, queue: QueueId) -> Option<(i32, &str)> {
        let said = self.path(queue).filter_map(|at| {
            let queue = &self.all[at.0].queue;
            Some((queue.max_priority?, queue.name.as_str()))
        });
        said.min_by_key(|(most, _)| *most)
    }

    /// Nobody holds anything.
    pub(crate) fn unused(&self) -> Usage {
        Usage(vec![0; self.all.len()])
    }

    /// How many more GPUs the jobs of this queue may hold.
    pub(crate) fn available(&self, queue: QueueId, usage: &Usage) -> u32 {
        self.within(queue, self.top(queue), usage)
    }

    /// How many of them it need not borrow, or only of queues that are in the same part of the tree, and that part does not
    /// borrow them. What others hold of them is to come back.
    pub(crate) fn entitled(&self, queue: QueueId, usage: &Usage) -> u32 {
        let parts = self.path(queue).filter(|part| self.has_parent(*part));
        let parts = parts.map(|part| self.within(queue, part, usage));
        parts.max().unwrap_or_else(|| self.available(queue, usage))
    }

    /// Whether a job of `queue` that needs so many GPUs may take back what `other` has borrowed: its own part of the tree
    /// need not borrow them, and every part of the other, up to the parent that both have, has borrowed.
    pub(crate) fn may_take_back(
        &self,
        queue: QueueId,
        need: u32,
        other: QueueId,
        usage: &Usage,
    ) -> bool {
        let Some((part, common)) = self.parted(queue, other) else {
            return false;
        };
        let mut of_other = self.path(other).take_while(|at| *at != common);
        self.within(queue, part, usage) >= need
            && of_other.all(|at| self.used(at.0, usage) > self.all[at.0].pool)
    }

    /// The lowest queue above both, and the queue below it that has the first. `None`: they are the same, or in different trees.
    fn parted(&self, one: QueueId, other: QueueId) -> Option<(QueueId, QueueId)> {
        let above: BTreeSet<QueueId> = self.path(other).skip(1).collect();
        let mut parts = self.path(one).filter(|_| one != other);
        parts.find_map(|part| {
            let parent = QueueId(self.all[part.0].queue.parent?);
            above.contains(&parent).then_some((part, parent))
        })
    }

    /// The queue, its parent, and so on to the top.
    pub(crate) fn path(&self, queue: QueueId) -> impl Iterator<Item = QueueId> {
        let parent = |queue: &QueueId| self.all[queue.0].queue.parent.map(QueueId);
        std::iter::successors(Some(queue), parent)
    }

    pub(crate) fn top(&self, queue: QueueId) -> QueueId {
        self.path(queue).last().expect("it begins with the queue")
    }

    /// How much of its pool is used. What a queue below keeps for itself is no part of it.
    fn used(&self, at: usize, usage: &Usage) -> u32 {
        let one = &self.all[at];
        let beyond = |child: &usize| {
            let used = self.used(*child, usage);
            used.saturating_sub(self.all[*child].guaranteed)
        };
        match one.children.is_empty() {
            true => usage.0[at],
            false => one.children.iter().map(beyond).sum(),
        }
    }

    /// How many more GPUs a queue could use if there were nothing above `top`, which is on its path.
    fn within(&self, queue: QueueId, top: QueueId, usage: &Usage) -> u32 {
        let (one, used) = (&self.all[queue.0], self.used(queue.0, usage));
        if queue == top {
            return one.pool.saturating_sub(used);
        }
        let Some(parent) = one.queue.parent else {
            return 0;
        };
        let own = one.guaranteed.saturating_sub(used);
        let shared = self.within(QueueId(parent), top, usage);
        let limit = one.queue.borrowing_limit;
        let limit = limit.map(|limit| {
            let lent = one.pool - one.guaranteed;
            lent.saturating_add(limit)
                .saturating_sub(used.saturating_sub(one.guaranteed))
        });
        own.saturating_add(limit.map_or(shared, |limit| limit.min(shared)))
    }
}

impl From<Queue> for Checked {
    fn from(queue: Queue) -> Checked {
        Checked {
            queue,
            quota: 0,
            pool: 0,
            guaranteed: 0,
            children: Vec::new(),
        }
    }
}

impl Usage {
    pub(crate) fn add(&mut self, queue: QueueId, gpus: u32) {
        self.0[queue.0] = self.0[queue.0].saturating_add(gpus);
    }

    pub(crate) fn take(&mut self, queue: QueueId, gpus: u32) {
        self.0[queue.0] = self.0[queue.0].saturating_sub(gpus);
    }

    pub(crate) fn of(&self, queue: QueueId) -> u32 {
        self.0[queue.0]
    }

    /// The same with these as well.
    pub(crate) fn with(&self, more: &Usage) -> Usage {
        let both = self.0.iter().zip(&more.0);
        Usage(both.map(|(one, more)| one.saturating_add(*more)).collect())
    }
}

/// What is wrong with queues by themselves, and beside each other.
fn check(queues: &[Queue]) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    for (at, queue) in queues.iter().enumerate() {
        let mut note = |field, why: String| {
            wrong.push(Wrong {
                queue: at,
                field,
                why,
            });
        };
        let has_children = queues.iter().any(|other| other.parent == Some(at));
        if !names.insert(&queue.name) {
            note("name", format!("another queue is called {}", queue.name));
        }
        if queue.quota.is_none() && !has_children {
            note("quota", "say how many GPUs it has".into());
        }
        if has_children && !queue.namespaces.is_empty() {
            let why = "a queue with queues below it has no jobs: name them in one of those";
            note("namespaces", why.into());
        }
        let limits = [
            ("borrowingLimit", queue.borrowing_limit),
            ("lendingLimit", queue.lending_limit),
        ];
        if queue.weight == Some(0) {
            note("weight", "must be at least 1".into());
        }
        for (field, limit) in limits {
            if limit.is_some() && queue.parent.is_none() {
                let why = "a queue at the top borrows and lends nothing: put it below another";
                note(field, why.into());
            }
        }
    }
    if queues.len() > QUEUES_MAX {
        let why = format!("at most {QUEUES_MAX} queues are allowed");
        wrong.push(Wrong {
            queue: 0,
            field: "",
            why,
        });
    }
    wrong
}

#[cfg(test)]
mod tests;
