//! All metrics: their names, kinds, labels and help. `docs/metrics.md` is written from this table, and
//! dashboards and alerts use no other names.
//!
//! Names follow Prometheus' conventions: `muster_`, base units, `_total` at counters. The labels of a job are
//! `job_namespace` and `job_name`, because a scrape renames `job` and `namespace`. No label has a rank, pod,
//! generation or sentence as its value: each would be a new series.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// One metric, for people and for the text.
#[derive(Clone, Copy, Debug)]
pub struct Described {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// One sentence or more, in one line.
    pub help: &'static str,
}

macro_rules! catalogue {
    ($($family:ident: $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        /// The metrics, by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Family {
            $($family,)*
        }

        /// The metrics in the order of the page.
        pub const FAMILIES: &[Described] = &[
            $(Described {
                name: $name,
                kind: Kind::$kind,
                labels: &[$($label),*],
                help: $help,
            },)*
        ];
    };
}

impl Family {
    pub(crate) fn described(self) -> &'static Described {
        &FAMILIES[self as usize]
    }
}

catalogue! {
    BuildInfo: Gauge "muster_build_info" ["version"]
        "Always 1. The version of the coordinator, with its commit.";
    Term: Gauge "muster_term" []
        "How often a coordinator has started on this store. It rises with each start, so a rise says that one ended.";
    Jobs: Gauge "muster_jobs" ["job_namespace", "phase"]
        "Jobs that are kept, those that are over among them.";
    PendingJobs: Gauge "muster_pending_jobs" ["reason"]
        "Jobs that have no generation, are not suspended and wait for no other job or time, by what they lack, or by the reason of their phase.";
    PendingGpus: Gauge "muster_pending_gpus" []
        "GPUs that the jobs of muster_pending_jobs want.";
    PendingOldest: Gauge "muster_pending_oldest_seconds" []
        "For how long the one of muster_pending_jobs that waits longest has waited. 0: none waits.";
    QueueQuota: Gauge "muster_queue_quota_gpus" ["queue"]
        "GPUs that a queue of --queues has as its own, with those of the queues below it.";
    QueueHeld: Gauge "muster_queue_held_gpus" ["queue"]
        "GPUs that its jobs hold, also those that are being stopped. What is beyond the quota is borrowed.";
    QueueAvailable: Gauge "muster_queue_available_gpus" ["queue"]
        "GPUs that its jobs could have besides, by the quotas alone. Absent where only queues below it have jobs.";
    QueueJobs: Gauge "muster_queue_jobs" ["queue", "state"]
        "Its jobs that hold GPUs (holding), and those with GPUs that wait for nodes (waiting).";
    JobInfo: Gauge "muster_job_info" ["job_namespace", "job_name", "uid"]
        "Always 1. Present for jobs that are not over, and for those that have been over for less than 15 minutes, as all metrics of one job.";
    JobPhase: Gauge "muster_job_phase" ["job_namespace", "job_name", "phase", "reason"]
        "Always 1. The phase and reason of the job now.";
    JobCreated: Gauge "muster_job_created_timestamp_seconds" ["job_namespace", "job_name"]
        "When it was submitted, in seconds since 1970.";
    JobNodes: Gauge "muster_job_nodes" ["job_namespace", "job_name"]
        "Members of its generation on nodes where all ranks have been started.";
    JobNodesWanted: Gauge "muster_job_nodes_wanted" ["job_namespace", "job_name"]
        "Members that it wants now.";
    JobNodesMin: Gauge "muster_job_nodes_min" ["job_namespace", "job_name"]
        "The fewest members with which it trains.";
    JobWorldSize: Gauge "muster_job_world_size" ["job_namespace", "job_name"]
        "Ranks of its generation. 0: there is none.";
    JobGpus: Gauge "muster_job_gpus" ["job_namespace", "job_name"]
        "GPUs that it holds.";
    JobStep: Gauge "muster_job_step" ["job_namespace", "job_name"]
        "The highest step that a rank of its generation has shown. It falls when lost steps are made again. Absent: none was seen.";
    JobStepDuration: Gauge "muster_job_step_duration_seconds" ["job_namespace", "job_name"]
        "The mean time of a step in its generation. Absent: fewer than two steps were seen.";
    JobStalled: Gauge "muster_job_stalled" ["job_namespace", "job_name"]
        "1: nothing of its generation moves any more, as two looks at its ranks have confirmed. muster describe job says which rank the others wait for.";
    JobSlowRanks: Gauge "muster_job_slow_ranks" ["job_namespace", "job_name"]
        "Ranks for which the others wait in each step, at least 0.3 times as long as a step takes without. muster describe job names them. It needs inspect: collectives.";
    JobGenerations: Counter "muster_job_generations_total" ["job_namespace", "job_name"]
        "Its generations. 0: it has had none yet.";
    JobRestarts: Counter "muster_job_restarts_total" ["job_namespace", "job_name"]
        "How often its workers were started again, for whatever reason.";
    JobIncidents: Counter "muster_job_incidents_total" ["job_namespace", "job_name", "cause"]
        "Starts, breaks and resizes of its whole world, by cause.";
    JobState: Counter "muster_job_state_seconds_total" ["job_namespace", "job_name", "state"]
        "Where the time of its life has gone. Each moment is in one state, so without the label the sum is its age, less the time that is doubted still. docs/explain.md says what the states are.";
    JobGpuState: Counter "muster_job_gpu_seconds_total" ["job_namespace", "job_name", "state"]
        "The same time for each GPU that it held.";
    JobLost: Counter "muster_job_lost_seconds_total" ["job_namespace", "job_name", "cause"]
        "The time in the states starting, recovering, resizing and repeating, by the cause of the incident. Time of waiting is not in it.";
    JobGoodput: Gauge "muster_job_goodput_ratio" ["job_namespace", "job_name"]
        "The part of its life since the first generation was decided in which it made new steps, from 0 to 1.";
    Nodes: Gauge "muster_nodes" ["state"]
        "Nodes by what is heard of them: ready, suspect, lost, or unknown since this coordinator started.";
    NodesCordoned: Gauge "muster_nodes_cordoned" ["by"]
        "Nodes that get no new work by policy: cordoned by muster, or by a person or another program.";
    NodesExcluded: Gauge "muster_nodes_excluded" []
        "Nodes that get no new work although they are not cordoned: their own findings, or others on their Kubernetes Node object, say so.";
    Agents: Gauge "muster_agents" ["version"]
        "Nodes that are heard, by the version of their agent.";
    Gpus: Gauge "muster_gpus" ["state"]
        "GPUs, each in one state: busy (a job holds it), unreachable (its node is not heard), cordoned, unhealthy (it is withheld), or free.";
    Findings: Gauge "muster_findings" ["check", "severity"]
        "What nodes have found to be wrong with themselves, by rule. docs/health-rules.md has the rules.";
    NodeException: Gauge "muster_node_exception" ["node", "kind"]
        "Always 1. Only for nodes that are not as they should be: suspect, lost, cordoned, unhealthy, or halted, because they know more than the store.";
    MassLoss: Gauge "muster_mass_loss" []
        "1: so many nodes fell silent at once that no node is cordoned and no wholly silent job is replaced.";
    TurnSeconds: Histogram "muster_turn_seconds" ["part"]
        "How long one decision took that changed something: to think, to commit it to the store, and to publish it.";
    Events: Counter "muster_events_total" ["reason"]
        "Events since this coordinator started, by reason. muster events shows them.";
    IncidentPhase: Histogram "muster_incident_phase_seconds" ["phase", "kind"]
        "The phases of incidents that were over since this coordinator started, as in muster explain, and their total. kind: start, worker, node or planned.";
    NotificationsWaiting: Gauge "muster_notifications_waiting" ["receiver"]
        "Messages that wait to be sent to a receiver of --notify, but for those that jobs have asked for.";
    NotificationsOldest: Gauge "muster_notifications_oldest_seconds" ["receiver"]
        "For how long the oldest of muster_notifications_waiting has waited. 0: none waits. Some seconds are usual, because messages gather.";
    NotificationsDropped: Gauge "muster_notifications_dropped" ["receiver"]
        "Notices that were dropped because the receiver could not be reached for a day or too many waited, and that it was not told of yet.";
    NotificationsOfJobsDropped: Gauge "muster_notifications_of_jobs_dropped" ["receiver"]
        "Notices that jobs had asked for (spec.notify), dropped for the same reasons or for more room, in the whole life of the store. Nobody is told of them.";
    Notifications: Counter "muster_notifications_total" ["receiver", "result"]
        "Attempts to deliver a message since this coordinator started, by result: delivered or failed.";
    Omitted: Gauge "muster_metrics_omitted" ["what"]
        "How many jobs or nodes this page leaves out, because it would be too long.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rules of <https://prometheus.io/docs/practices/naming/>, and ours.
    #[test]
    fn names_and_labels_follow_the_conventions() {
        let mut names = BTreeSet::new();
        for Described {
            name,
            kind,
            labels,
            help,
        } in FAMILIES
        {
            assert!(names.insert(name), "{name} twice");
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(
                name.starts_with("muster_") && name.chars().all(legal),
                "{name}"
            );
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            for unit in [
                "_ms", "_us", "_millis", "_percent", "_minutes", "_hours", "_count", "_sum",
                "_bucket",
            ] {
                assert!(!name.ends_with(unit), "{name}: {unit} is no base unit");
            }
            for label in *labels {
                assert!(label.chars().all(legal), "{name}: {label}");
                // A scrape sets these itself.
                let taken = [
                    "job",
                    "namespace",
                    "instance",
                    "pod",
                    "container",
                    "service",
                    "endpoint",
                    "le",
                ];
                let unbounded = ["rank", "generation", "message"];
                assert!(
                    !taken.contains(label) && !unbounded.contains(label),
                    "{name}: {label}"
                );
            }
            assert!(
                help.ends_with('.') && !help.contains('\n'),
                "{name}: {help}"
            );
        }
    }
}
