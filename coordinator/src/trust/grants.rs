//! `access.json`: which user has which role in which namespaces, and which names are denied. A
//! person may edit it. It is read again when it has changed, and a version that cannot be read
//! changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use muster_rpc::identity::Principal;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::files::{TrustError, lock, read_json, write_json};

/// How often heartbeats look whether the file has changed. Users' calls, of which there are far
/// fewer, look each time.
const LOOK: Duration = Duration::from_secs(1);

/// What a user may do. Each role may also do what the ones before it may.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees jobs, nodes and events
    Viewer,
    /// Submits, scales and ends jobs, and reads their logs and environment
    Submitter,
    /// Cordons and deletes nodes
    Operator,
    /// Everything
    Admin,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Submitter => "submitter",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Grant {
    pub role: Role,
    /// The namespaces of the jobs that the role is for.
    #[serde(default)]
    pub namespaces: BTreeSet<String>,
    /// The role is for all namespaces.
    #[serde(default)]
    pub all_namespaces: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    #[serde(default)]
    users: BTreeMap<String, Grant>,
    /// `host/NAME` or `user/NAME`.
    #[serde(default)]
    denied: BTreeSet<String>,
}

#[derive(Debug)]
pub struct Grants {
    path: PathBuf,
    read: Mutex<Read>,
}

type Version = (SystemTime, u64, u64);

#[derive(Debug)]
struct Read {
    content: Arc<Content>,
    changed: Option<Version>,
    looked: Instant,
}

impl Grants {
    pub(super) fn new(folder: &Path) -> Result<Self, TrustError> {
        let path = folder.join("access.json");
        let changed = changed(&path);
        let content = Arc::new(read_json(&path)?.unwrap_or_default());
        Ok(Self {
            path,
            read: Mutex::new(Read {
                content,
                changed,
                looked: Instant::now(),
            }),
        })
    }

    /// The role of this user. `None`: nobody has given it one.
    pub fn of_user(&self, name: &str) -> Option<Grant> {
        self.content(Duration::ZERO).users.get(name).cloned()
    }

    pub fn is_denied(&self, principal: &Principal) -> bool {
        let content = self.content(LOOK);
        !content.denied.is_empty() && content.denied.contains(&principal.to_string())
    }

    /// Gives a user this role in place of the one it has.
    pub fn set(&self, user: &str, grant: Grant) -> Result<(), TrustError> {
        self.change(|content| drop(content.users.insert(user.to_owned(), grant)))
    }

    /// Denies a name everything, or allows it again.
    pub fn deny(&self, principal: &Principal, denied: bool) -> Result<(), TrustError> {
        let name = principal.to_string();
        self.change(|content| {
            if denied {
                content.denied.insert(name);
            } else {
                content.denied.remove(&name);
            }
        })
    }

    fn change(&self, change: impl FnOnce(&mut Content)) -> Result<(), TrustError> {
        // Two commands at once must not lose what one of them writes.
        let _lock = lock(&self.path.with_file_name("access.lock"))?;
        let mut content = read_json::<Content>(&self.path)?.unwrap_or_default();
        change(&mut content);
        write_json(&self.path, &content)
    }

    /// What the file says, as of at most this long ago.
    fn content(&self, ago: Duration) -> Arc<Content> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.looked.elapsed() >= ago {
            read.looked = Instant::now();
            let changed = changed(&self.path);
            if changed != read.changed {
                // After a failure it is looked at again, until it can be read.
                match read_json(&self.path) {
                    Ok(Some(content)) => {
                        read.content = Arc::new(content);
                        read.changed = changed;
                    }
                    Ok(None) => {
                        warn!(
                            "{} is gone; what it said before still holds",
                            self.path.display()
                        );
                    }
                    Err(e) => warn!("{e}; what it said before still holds"),
                }
            }
        }
        read.content.clone()
    }
}

/// Differs for each version of the file: every writer of ours replaces it, which makes another
/// inode.
fn changed(path: &Path) -> Option<Version> {
    let data = fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.ino(), data.len()))
}
