//! Who gets GPUs first, and how many: queues, limits, fair share, and what jobs give up for others.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use muster_core::{
    fleet::{GpusMax, Policy, queues::Queues},
    id, period,
    spec::Preemption,
};

use crate::queues;

/// Jobs of equal priority go by age, unless --fair-share-half-life says otherwise.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Order and limits of jobs")]
pub struct TurnOptions {
    /// How many GPUs the jobs of a namespace may hold together. "*" stands for every other namespace. A job
    /// that would hold more waits. Jobs with a pod template are not counted: a ResourceQuota is for them.
    #[arg(
        long,
        env = "MUSTER_GPUS_MAX",
        value_name = "NAMESPACE=N,...",
        value_delimiter = ',',
        value_parser = parse_gpus_max
    )]
    pub gpus_max: Vec<(String, u32)>,

    /// How many GPUs the jobs of a user may hold together, in all namespaces. "*" stands for every other user. Users
    /// are told apart by certificate or token. Jobs submitted without either, and those of Kubernetes objects, are
    /// not limited.
    #[arg(
        long,
        env = "MUSTER_USER_GPUS_MAX",
        value_name = "USER=N,...",
        value_delimiter = ',',
        value_parser = parse_user_gpus_max
    )]
    pub user_gpus_max: Vec<(String, u32)>,

    /// File with a tree of queues: quotas in GPUs, what may be borrowed, and whose jobs are in which queue. A
    /// job within the quota of its queue gets back what others have borrowed, as far as --preemption allows.
    /// docs/queues.md describes it. Read at the start.
    #[arg(long, env = "MUSTER_QUEUES", value_name = "FILE")]
    pub queues: Option<PathBuf>,

    /// Of jobs of equal priority those go first whose owners have used the least GPU time of late: GPU time counts half as
    /// much after each PERIOD, from 1m to 30d; Slurm's default is 7d. First queues are compared, or namespaces where there are
    /// none, then the users of one. Without this flag jobs of equal priority go by age. Needs a history.
    #[arg(long, env = "MUSTER_FAIR_SHARE_HALF_LIFE", value_name = "PERIOD", value_parser = parse_half_life)]
    pub fair_share_half_life: Option<Duration>,

    /// What may be done to jobs at most, so that one of higher priority can start: never, shrink (elastic jobs
    /// give up members, down to their minimum) or evict (they may also lose all nodes, and wait again). A
    /// job may allow less.
    #[arg(long, env = "MUSTER_PREEMPTION", value_name = "WORD", default_value = "shrink", value_parser = parse_preemption)]
    pub preemption: Preemption,

    /// Jobs also give up nodes for jobs of other namespaces. Without it nobody takes from another
    /// namespace: whoever submits a job chooses its priority.
    #[arg(long, env = "MUSTER_PREEMPT_OTHER_NAMESPACES")]
    pub preempt_other_namespaces: bool,

    /// How long a job trains at least before it is evicted.
    #[arg(long, env = "MUSTER_EVICT_AFTER", value_name = "PERIOD", default_value = "5m", value_parser = period::parse)]
    pub evict_after: Duration,

    /// How long a job waits for room before it keeps it from jobs of its priority that are behind it. From
    /// lower priorities it keeps it at once.
    #[arg(long, env = "MUSTER_RESERVE_AFTER", value_name = "PERIOD", default_value = "10m", value_parser = period::parse)]
    pub reserve_after: Duration,
}

impl TurnOptions {
    /// The policy with what these flags ask for, or which flag is wrong.
    pub(super) fn policy(&self) -> Result<Policy, String> {
        Ok(Policy {
            gpus_max: limits("--gpus-max", &self.gpus_max)?,
            user_gpus_max: limits("--user-gpus-max", &self.user_gpus_max)?,
            queues: match &self.queues {
                Some(file) => queues::read(file)?,
                None => Queues::default(),
            },
            fair_share_half_life: self.fair_share_half_life,
            reserve_after: self.reserve_after,
            preemption: self.preemption,
            preempt_other_namespaces: self.preempt_other_namespaces,
            evict_after: self.evict_after,
            ..Policy::default()
        })
    }
}

/// What is said of each name, and of all others.
fn limits(flag: &str, said: &[(String, u32)]) -> Result<GpusMax, String> {
    let mut limits = GpusMax::default();
    for (name, most) in said {
        let again = match name.as_str() {
            "*" => limits.others.replace(*most).is_some(),
            _ => limits.named.insert(name.clone(), *most).is_some(),
        };
        if again {
            return Err(format!("{flag}: {name} is there twice"));
        }
    }
    Ok(limits)
}

fn parse_preemption(text: &str) -> Result<Preemption, String> {
    let found = Preemption::ALL.iter().find(|(name, _)| *name == text);
    let found = found.map(|(_, preemption)| *preemption);
    found.ok_or_else(|| "must be never, shrink or evict".into())
}

/// `team-a=64`, or `*=8`.
fn parse_gpus_max(text: &str) -> Result<(String, u32), String> {
    let wrong = || "write it as NAMESPACE=N, with a whole number of GPUs; * stands for every other namespace";
    let (namespace, most) = text.split_once('=').ok_or_else(wrong)?;
    let most = most.parse().map_err(|_| wrong())?;
    if let Some(why) = id::label_error(namespace).filter(|_| namespace != "*") {
        return Err(format!("the namespace {why}"));
    }
    Ok((namespace.to_owned(), most))
}

fn parse_user_gpus_max(text: &str) -> Result<(String, u32), String> {
    let wrong = || "write it as USER=N, with a whole number of GPUs; * stands for every other user";
    let (user, most) = text.rsplit_once('=').ok_or_else(wrong)?;
    if user.is_empty() {
        return Err(wrong().to_owned());
    }
    Ok((user.to_owned(), most.parse().map_err(|_| wrong())?))
}

/// It is reckoned once a minute.
fn parse_half_life(text: &str) -> Result<Duration, String> {
    let half_life = period::parse(text)?;
    match half_life < Duration::from_secs(60) {
        true => Err("must be at least 1m".into()),
        false => Ok(half_life),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::Options;

    fn read(flags: &[&str]) -> Result<Policy, String> {
        let all = ["muster-coordinator", "--state-dir", "/s"];
        let options = Options::try_parse_from(all.iter().chain(flags));
        options.map_err(|e| e.to_string())?.policy.policy()
    }

    #[test]
    fn limits_of_users_are_read() {
        let limits = ["--user-gpus-max", "system:serviceaccount:a:b=64,x=y=2,*=8"];
        let policy = read(&limits).unwrap();
        let of = |user: &str| policy.user_gpus_max.named[user];
        assert_eq!((of("system:serviceaccount:a:b"), of("x=y")), (64, 2));
        assert_eq!(policy.user_gpus_max.others, Some(8));
        for wrong in ["ann", "ann=", "ann=-1", "=1"] {
            assert!(parse_user_gpus_max(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_of_namespaces_are_read() {
        let policy = read(&["--gpus-max", "team-a=64,*=8"]).unwrap();
        assert_eq!(policy.gpus_max.named, [("team-a".to_owned(), 64)].into());
        assert_eq!(policy.gpus_max.others, Some(8));
        for wrong in ["team-a", "team-a=", "team-a=-1", "Team=1", "=1"] {
            assert!(read(&["--gpus-max", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_half_life_is_a_period_within_bounds() {
        let read = |text| read(&["--fair-share-half-life", text]);
        let week = Duration::from_secs(7 * 24 * 3_600);
        assert_eq!(read("7d").unwrap().fair_share_half_life, Some(week));
        for wrong in ["0", "59s", "31d", "week"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
