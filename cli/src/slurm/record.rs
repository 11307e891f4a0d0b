//! What an allocation's directory says of its cluster, and its two lists of secrets: the coordinator's
//! tokens, which its step writes, and what the steps of the agents read.

use std::{
    env,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{fail::Failure, local::process::Identity};

const RECORD: &str = "cluster.json";

/// A cluster that was started in an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The allocation's number.
    pub(super) job: String,
    /// Endpoint of the coordinator. Empty until it has served.
    pub(super) server: String,
    /// The name of Slurm's cluster: several can share the directories of their users.
    #[serde(default)]
    pub(super) slurm: String,
    /// How often Slurm had started the job again: a job that is requeued keeps its number.
    #[serde(default)]
    pub(super) restarts: String,
    /// The allocation with the coordinator, if this one has none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) joined: Option<String>,
    /// The coordinator's step, then that of the agents. With `joined`, that of the agents alone.
    pub(super) steps: Vec<StepRecord>,
}

/// A step that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StepRecord {
    /// Slurm's number of it. Empty: not known yet.
    pub(super) number: String,
    /// The process of srun, on the machine where the cluster was started.
    pub(super) srun: Identity,
}

/// What the coordinator's step prints once it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Serves {
    pub(super) server: String,
    pub(super) pin: String,
    /// The join token of the agents, also for those of other allocations.
    pub(super) host_token: String,
    /// The join token of the allocation's user.
    pub(super) user_token: String,
    pub(super) step: String,
}

/// What the agents' steps read. It lies in a file that only the user can read, and comes to each step on its
/// standard input, so the nodes need no directory in common for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Joins {
    pub(super) server: String,
    pub(super) pin: String,
    pub(super) token: String,
    /// Tells this cluster from an earlier one of the same allocation.
    pub(super) id: String,
    pub(super) slots: u32,
    pub(super) gpus: Option<String>,
    /// The allocation of these agents.
    pub(super) job: String,
    /// They join the cluster of another allocation: their names must be their own, and they leave when their
    /// standard input ends.
    #[serde(default)]
    pub(super) is_guest: bool,
}

/// What lies in an allocation's directory for its agents, and for those of allocations that join it.
pub(super) fn joins(dir: &Path) -> PathBuf {
    dir.join("join.json")
}

/// What an agent's step prints once it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Joined {
    pub(super) node: String,
    pub(super) step: String,
}

/// What the user shows to the coordinator.
pub(super) fn credentials(dir: &Path) -> PathBuf {
    dir.join("credentials.json")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

impl Record {
    /// Of a cluster that is started here and now.
    pub(super) fn new(job: &str) -> Self {
        Self {
            job: job.to_owned(),
            slurm: variable("SLURM_CLUSTER_NAME"),
            restarts: variable("SLURM_RESTART_COUNT"),
            ..Self::default()
        }
    }

    /// Whether it is of the same start of the same job as this command.
    pub(super) fn is_of_this_start(&self) -> bool {
        let now = Self::new(&self.job);
        (&self.slurm, &self.restarts) == (&now.slurm, &now.restarts)
    }

    /// Whether its steps have ended, as far as this machine can tell.
    pub(super) fn is_over(&self) -> bool {
        let here = self.steps.iter().filter(|step| step.srun.is_of_this_boot());
        let here: Vec<_> = here.collect();
        !here.is_empty()
            && here.len() == self.steps.len()
            && here.iter().all(|step| !step.srun.is_alive())
    }

    /// Makes the record, if there is none.
    pub(super) fn claim(&self, dir: &Path) -> io::Result<()> {
        let new = dir.join(format!("claim-{}", std::process::id()));
        fs::write(&new, serde_json::to_vec(self)?)?;
        // A link is made whole, and never in place of a file.
        let made = fs::hard_link(&new, dir.join(RECORD));
        fs::remove_file(&new)?;
        made
    }

    /// `None`: no cluster was started there.
    pub(super) fn load(dir: &Path) -> Result<Option<Self>, Failure> {
        let path = dir.join(RECORD);
        let failed = |why: String| Failure::request(format!("{}: {why}", path.display()));
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|e| failed(format!("is damaged: {e}; `scancel` ends its steps, and the directory can be removed then"))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(e.to_string())),
        }
    }

    /// Replaces the record. Whoever reads meanwhile has the old or the new one.
    pub(super) fn save(&self, dir: &Path) -> Result<(), Failure> {
        write(&dir.join(RECORD), self)
    }
}

/// Writes a file that only the user can read, whole or not at all.
pub(super) fn write(path: &Path, content: &impl Serialize) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let attempt = || -> io::Result<()> {
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&new)?;
        let mut text = serde_json::to_vec(content)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    attempt().map_err(|e| Failure::request(format!("{}: {e}", path.display())))
}

/// The lines of this kind that a step has printed. Others, such as those of a site's prolog, are left out.
pub(super) fn printed<T: DeserializeOwned>(path: &Path) -> Vec<T> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may not be whole yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_written_and_damage_is_said() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), None);
        let record = Record {
            job: "4711".into(),
            server: "https://10.0.0.1:7070".into(),
            ..Record::new("4711")
        };
        record.claim(dir.path()).unwrap();
        assert!(record.claim(dir.path()).is_err(), "only one is first");
        record.save(dir.path()).unwrap();
        assert_eq!(Record::load(dir.path()).unwrap(), Some(record));
        fs::write(dir.path().join(RECORD), "{").unwrap();
        let told = Record::load(dir.path()).unwrap_err().to_string();
        assert!(
            told.contains("is damaged") && told.contains("scancel"),
            "{told}"
        );
    }

    #[test]
    fn what_a_step_prints_is_found_among_other_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agents.out");
        assert!(printed::<Joined>(&path).is_empty());
        fs::write(
            &path,
            "Welcome to the cluster\n{\"node\":\"n1\",\"step\":\"1\"}\n{\"node\":\"n2\",\"st",
        )
        .unwrap();
        let nodes: Vec<_> = printed::<Joined>(&path)
            .into_iter()
            .map(|it| it.node)
            .collect();
        assert_eq!(nodes, ["n1"]);
    }
}
