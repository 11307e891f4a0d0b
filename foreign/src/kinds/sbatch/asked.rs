//! What the options of a script ask for: numbers of nodes, tasks and GPUs, limits, nodes by name.

use muster_core::spec::{NotifyDocument, SECONDS_MAX};

use super::{
    mail::Mail,
    options::{Entry, Use},
};
use crate::{grace::GRACE_MAX, names, options::Cluster, tree::Field, verdict::Verdicts};

/// A value with its option.
pub(super) type At<T> = Option<(T, Field<'static>)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) name: At<String>,
    pub(super) nodes: At<(i64, i64)>,
    pub(super) tasks: At<i64>,
    pub(super) tasks_per_node: At<i64>,
    pub(super) cpus_per_task: At<i64>,
    pub(super) gpus: At<i64>,
    pub(super) gpus_per_node: At<i64>,
    pub(super) gpus_per_task: At<i64>,
    pub(super) deadline: At<i64>,
    pub(super) grace: At<i64>,
    pub(super) chdir: At<String>,
    pub(super) image: At<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) node_list: At<Vec<String>>,
    pub(super) exclude: At<Vec<String>>,
    pub(super) selector: Vec<(String, String)>,
    pub(super) selector_at: Option<Field<'static>>,
    pub(super) priority: At<i64>,
    pub(super) suspend: bool,
    pub(super) no_requeue: Option<Field<'static>>,
    pub(super) partition: Option<String>,
    pub(super) mail: Mail,
    /// What has become of it.
    pub(super) notify: Vec<NotifyDocument>,
}

const WHOLE: &str = "must be a whole number from 1 on";

impl Asked {
    /// Takes one option. A later one wins, as in Slurm.
    pub(super) fn take(
        &mut self,
        entry: &Entry,
        value: Option<&str>,
        at: &Field<'static>,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) {
        match entry.3 {
            Use::Note(why) => return log.note(at, why),
            Use::Warn(why) => return log.warn(at, why),
            Use::Refuse(why) => return log.refuse(at, why),
            Use::Read => {}
        }
        let text = value.unwrap_or_default();
        match entry.0 {
            "hold" => {
                self.suspend = true;
                log.taken(at, "spec.suspend (muster resume)");
            }
            "no-requeue" => {
                self.no_requeue = Some(at.clone());
                log.taken(at, "part of spec.rules: a lost node ends the job");
            }
            "partition" => {
                self.partition = Some(text.to_owned());
                log.warn(at, "has no effect: Muster has no partitions; name nodes with --nodelist, or their labels with nodeSelector in a MusterJob");
            }
            "qos" => {
                let priority = cluster.priority(text, at, log);
                self.priority = priority.map(|priority| (priority, at.clone()));
            }
            "job-name" => self.name = Some((text.to_owned(), at.clone())),
            "chdir" => {
                self.chdir = Some((text.to_owned(), at.clone()));
                log.taken(at, "spec.workingDir");
            }
            "container-image" => {
                self.image = Some((text.to_owned(), at.clone()));
                log.taken(at, "spec.image");
            }
            "export" => self.export(text, at, log),
            "mail-type" | "mail-user" => self.mail.take(entry.0, text, at),
            "constraint" => self.constraint(text, at, cluster, log),
            "nodelist" => {
                self.node_list = hosts(text, at, log);
                log.warn(at, "is spec.nodeList, which is a limit: the job never gets other nodes, where Slurm adds some");
            }
            "exclude" => {
                self.exclude = hosts(text, at, log);
                log.taken(at, "spec.excludeNodes");
            }
            "time" => self.time(text, at, log),
            "signal" => self.signal(text, at, log),
            "nodes" => match range(text) {
                Some(nodes) => self.nodes = Some((nodes, at.clone())),
                None => log.refuse(at, format!("is {text:?}, must be N or MIN-MAX")),
            },
            "gres" => self.gres(text, at, log),
            "gpus" | "gpus-per-node" | "gpus-per-task" => match gpus(text, at, log) {
                Some(count) => {
                    let to = match entry.0 {
                        "gpus" => &mut self.gpus,
                        "gpus-per-node" => &mut self.gpus_per_node,
                        _ => &mut self.gpus_per_task,
                    };
                    *to = Some((count, at.clone()));
                }
                None => log.refuse(at, format!("is {text:?}, must be a number, or TYPE:NUMBER")),
            },
            _ => self.count(entry.0, text, at, log),
        }
    }

    fn count(&mut self, name: &str, text: &str, at: &Field<'static>, log: &mut Verdicts) {
        let Some(count) = text.parse::<i64>().ok().filter(|count| *count >= 1) else {
            return log.refuse(at, format!("is {text:?}, {WHOLE}"));
        };
        let to = match name {
            "ntasks" => &mut self.tasks,
            "ntasks-per-node" | "tasks-per-node" => &mut self.tasks_per_node,
            _ => {
                log.note(
                    at,
                    "is what SLURM_CPUS_PER_TASK is in the script; Muster does not divide CPUs",
                );
                &mut self.cpus_per_task
            }
        };
        *to = Some((count, at.clone()));
    }

    /// Only the variables that the option names. Those of the shell that submits are not known on the nodes.
    fn export(&mut self, text: &str, at: &Field<'static>, log: &mut Verdicts) {
        let mut all = text.is_empty();
        for part in text.split(',') {
            match (part, part.split_once('=')) {
                (_, Some((name, value))) => self.env.push((name.to_owned(), value.to_owned())),
                ("ALL", None) => all = true,
                ("NONE" | "NIL" | "", None) => {}
                (name, None) => {
                    return log.refuse(at, format!("names {name} without a value, and the variables of your shell are not sent; write {name}=VALUE"));
                }
            }
        }
        match (all, self.env.is_empty()) {
            (true, _) => log.note(
                at,
                "sends no variable of your shell; export what the job needs in the script",
            ),
            (false, true) => log.note(at, "is so anyway: no variable of your shell is sent"),
            (false, false) => log.taken(at, "part of spec.env"),
        }
    }

    /// Features of nodes, as the site map says them in labels.
    fn constraint(
        &mut self,
        text: &str,
        at: &Field<'static>,
        cluster: &Cluster<'_>,
        log: &mut Verdicts,
    ) {
        for feature in text.split(['&', ',']) {
            let Some(labels) = cluster.site.features.get(feature) else {
                return log.refuse(at, format!("asks for nodes with {feature:?}, and Muster knows nodes by labels; say which with `features: {{{feature:?}: {{LABEL: VALUE}}}}` in the site map, or {{}} if all nodes are such, or take the option out"));
            };
            self.selector.extend(labels.clone());
        }
        self.selector_at = Some(at.clone());
        match self.selector.is_empty() {
            true => log.note(
                at,
                "is so anyway: the site map says that all nodes are such",
            ),
            false => log.taken(at, "spec.nodeSelector"),
        }
    }

    fn time(&mut self, text: &str, at: &Field<'static>, log: &mut Verdicts) {
        match limit(text) {
            None => log.refuse(
                at,
                format!("is {text:?}, must be minutes, [DAYS-]HOURS:MINUTES:SECONDS or UNLIMITED"),
            ),
            Some(None) => log.note(at, "is so anyway: a job has no limit unless it names one"),
            Some(Some(seconds)) => {
                self.deadline = Some((seconds, at.clone()));
                log.warn(at, format!("is spec.activeDeadlineSeconds: {seconds}, which counts from the submission: what the job waits for nodes is part of it"));
            }
        }
    }

    /// `[{R|B}:]SIGNAL[@SECONDS]`. The seconds are what the job needs to save.
    fn signal(&mut self, text: &str, at: &Field<'static>, log: &mut Verdicts) {
        let bare = text.split_once(':').map_or(text, |(_, rest)| rest);
        let (signal, seconds) = bare.split_once('@').unwrap_or((bare, "60"));
        let Some(seconds) = seconds.parse::<i64>().ok().filter(|seconds| *seconds >= 1) else {
            return log.refuse(at, format!("is {text:?}, must be [B:]SIGNAL[@SECONDS]"));
        };
        let taken = seconds.min(GRACE_MAX);
        self.grace = Some((taken, at.clone()));
        let name = signal.trim_start_matches("SIG");
        let is_term = name.eq_ignore_ascii_case("TERM") || name == "15";
        match (is_term, taken == seconds) {
            (true, true) => log.taken(at, format!("spec.stopGracePeriod: {taken}s")),
            (true, false) => log.warn(at, format!("is spec.stopGracePeriod: {taken}s, which is the longest stop here")),
            (false, _) => log.warn(at, format!("is spec.stopGracePeriod: {taken}s; ranks hear SIGTERM, not {signal}, and hear it at every stop")),
        }
    }

    fn gres(&mut self, text: &str, at: &Field<'static>, log: &mut Verdicts) {
        let mut count = None;
        for part in text.split(',') {
            let part = part.strip_prefix("gres/").unwrap_or(part);
            let part = part.strip_prefix("gres:").unwrap_or(part);
            let (name, rest) = part.split_once(':').unwrap_or((part, ""));
            match name {
                "none" => count = Some(0),
                "gpu" => match gpus(if rest.is_empty() { "1" } else { rest }, at, log) {
                    Some(more) => count = Some(count.unwrap_or(0) + more),
                    None => {
                        return log.refuse(at, format!("is {text:?}, must be gpu[:TYPE][:NUMBER]"));
                    }
                },
                other => {
                    return log.refuse(
                        at,
                        format!("asks for {other:?}; of a node's resources Muster knows only GPUs"),
                    );
                }
            }
        }
        self.gpus_per_node = count.map(|count| (count, at.clone()));
    }

    /// What `srun` says wins over what the job says.
    pub(super) fn of_step(&self, step: &Asked) -> Asked {
        let mut all = self.clone();
        if step.tasks.is_some() || step.tasks_per_node.is_some() {
            all.tasks = step.tasks.clone();
            all.tasks_per_node = step.tasks_per_node.clone();
        }
        all.deadline = step.deadline.clone().or(all.deadline);
        all.node_list = step.node_list.clone().or(all.node_list);
        all.exclude = step.exclude.clone().or(all.exclude);
        all.chdir = step.chdir.clone().or(all.chdir);
        all.image = step.image.clone().or(all.image);
        all.cpus_per_task = step.cpus_per_task.clone().or(all.cpus_per_task);
        all.gpus_per_task = step.gpus_per_task.clone().or(all.gpus_per_task);
        all.env.extend(step.env.iter().cloned());
        all
    }
}

fn hosts(text: &str, at: &Field<'static>, log: &mut Verdicts) -> At<Vec<String>> {
    let words = names::parts(text).map(str::trim);
    match names::expand_all(words.filter(|word| !word.is_empty())) {
        Ok(names) if names.is_empty() => log.refuse(at, "names no node"),
        Ok(names) => return Some((names, at.clone())),
        Err(why) => log.refuse(at, why),
    }
    None
}

/// `N`, `MIN-MAX`
fn range(text: &str) -> Option<(i64, i64)> {
    let number = |text: &str| text.parse::<i64>().ok().filter(|count| *count >= 1);
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let (min, max) = (number(min)?, number(max)?);
    (min <= max).then_some((min, max))
}

/// `N`, `TYPE:N`
fn gpus(text: &str, at: &Field<'static>, log: &mut Verdicts) -> Option<i64> {
    // `gpu:a100` without a number is one.
    let (kind, count) = match text.rsplit_once(':') {
        Some((kind, count)) => (Some(kind), count),
        None => (None, text),
    };
    let parsed = count.parse::<i64>().ok().filter(|count| *count >= 0);
    let (kind, count) = match (kind, parsed) {
        (kind, Some(parsed)) => (kind, parsed),
        (None, None) if at.path == "--gres" && !count.is_empty() => (Some(count), 1),
        _ => return None,
    };
    if let Some(kind) = kind {
        log.warn(at, format!("asks for GPUs {kind:?}, and any are taken; name them with nodeSelector (nvidia.com/gpu.product) in a MusterJob"));
    }
    Some(count)
}

/// Seconds of a time limit. `Some(None)`: there is none.
fn limit(text: &str) -> Option<Option<i64>> {
    if ["UNLIMITED", "INFINITE", "-1"].contains(&text.to_ascii_uppercase().as_str()) {
        return Some(None);
    }
    let number = |text: &str| {
        text.parse::<i64>()
            .ok()
            .filter(|n| (0..=SECONDS_MAX).contains(n))
    };
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts: Option<Vec<i64>> = rest.split(':').map(number).collect();
    let seconds = match (days, &parts?[..]) {
        (None, [minutes]) => minutes * 60,
        (None, [minutes, seconds]) => minutes * 60 + seconds,
        (Some(_), [hours]) => hours * 3_600,
        (Some(_), [hours, minutes]) => hours * 3_600 + minutes * 60,
        (_, [hours, minutes, seconds]) => hours * 3_600 + minutes * 60 + seconds,
        _ => return None,
    };
    let seconds = seconds + days.unwrap_or(0) * 86_400;
    Some((seconds > 0).then_some(seconds.min(SECONDS_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_slurm_writes_them() {
        for (text, seconds) in [
            ("30", Some(Some(1_800))),
            ("30:05", Some(Some(1_805))),
            ("01:00:00", Some(Some(3_600))),
            ("2-12", Some(Some(216_000))),
            ("1-00:30", Some(Some(88_200))),
            ("1-01:01:01", Some(Some(90_061))),
            ("UNLIMITED", Some(None)),
            ("0", Some(None)),
            ("", None),
            ("1h", None),
            ("1:2:3:4", None),
            ("-5", None),
            ("9999999999999-0", None),
        ] {
            assert_eq!(limit(text), seconds, "{text}");
        }
    }

    #[test]
    fn numbers_of_nodes() {
        assert_eq!(range("4"), Some((4, 4)));
        assert_eq!(range("2-8"), Some((2, 8)));
        for bad in ["", "0", "8-2", "a", "1-", "-3", "1,2"] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }
}
