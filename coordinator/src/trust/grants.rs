//! `access.json`: which user has which role in which namespaces, and which names are denied. A
//! person may edit it. It is read again when it has changed, and a version that cannot be read
//! changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use muster_rpc::identity::Principal;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::warn;

use super::files::{TrustError, Version, lock, read_json, version, write_json};

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
pub(super) struct Content {
    #[serde(default)]
    users: BTreeMap<String, Grant>,
    /// `host/NAME` or `user/NAME`.
    #[serde(default)]
    denied: BTreeSet<String>,
}

#[derive(Debug)]
pub struct Grants {
    path: PathBuf,
    /// What calls and heartbeats are answered by, without a look at the disk.
    content: watch::Sender<Arc<Content>>,
    /// The version of the file that this is.
    read: Mutex<Option<Version>>,
}

impl Grants {
    pub(super) fn new(folder: &Path) -> Result<Self, TrustError> {
        let path = folder.join("access.json");
        let changed = version(&path);
        let content = read_json(&path)?.unwrap_or_default();
        Ok(Self {
            path,
            content: watch::Sender::new(Arc::new(content)),
            read: Mutex::new(changed),
        })
    }

    /// The role of this user. `None`: nobody has given it one.
    pub fn of_user(&self, name: &str) -> Option<Grant> {
        self.content().users.get(name).cloned()
    }

    /// Every user that has a role.
    pub fn users(&self) -> BTreeMap<String, Grant> {
        self.content().users.clone()
    }

    /// The names that are denied everything, `host/NAME` or `user/NAME`.
    pub fn denied(&self) -> BTreeSet<String> {
        self.content().denied.clone()
    }

    pub fn is_denied(&self, principal: &Principal) -> bool {
        let content = self.content();
        !content.denied.is_empty() && content.denied.contains(&principal.to_string())
    }

    /// Tells when a role or a denial has changed.
    pub(super) fn changes(&self) -> watch::Receiver<Arc<Content>> {
        self.content.subscribe()
    }

    /// Reads the file again if it has changed. The disk may be slow, so this is not for the thread
    /// that answers calls.
    pub fn look(&self) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = version(&self.path);
        if changed == *read {
            return;
        }
        // After a failure it is looked at again, until it can be read.
        match read_json(&self.path) {
            Ok(Some(content)) => {
                self.content.send_replace(Arc::new(content));
                *read = changed;
            }
            Ok(None) => {
                let path = self.path.display();
                warn!("{path} is gone; what it said before still holds");
            }
            Err(e) => warn!("{e}; what it said before still holds"),
        }
    }

    /// Gives a user this role in place of the one it has.
    pub fn set(&self, user: &str, grant: Grant) -> Result<(), TrustError> {
        self.change(|content| drop(content.users.insert(user.to_owned(), grant)))
    }

    /// Takes a user's role away. Says whether it had one.
    pub fn remove(&self, user: &str) -> Result<bool, TrustError> {
        let mut had = false;
        self.change(|content| had = content.users.remove(user).is_some())?;
        Ok(had)
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

    fn content(&self) -> Arc<Content> {
        self.content.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn grant(namespaces: &[&str]) -> Grant {
        Grant {
            role: Role::Viewer,
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            all_namespaces: false,
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_changes_nothing_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let grants = Grants::new(folder.path()).unwrap();
        grants.set("ann", grant(&["a"])).unwrap();
        grants.look();
        assert_eq!(grants.of_user("ann"), Some(grant(&["a"])));
        let path = folder.path().join("access.json");
        let good = fs::read_to_string(&path).unwrap();
        for bad in ["{", r#"{"user": {}}"#] {
            fs::write(&path, bad).unwrap();
            grants.look();
            assert_eq!(grants.of_user("ann"), Some(grant(&["a"])), "{bad}");
        }
        fs::remove_file(&path).unwrap();
        grants.look();
        assert_eq!(grants.of_user("ann"), Some(grant(&["a"])), "it is gone");
        fs::write(&path, good.replace("\"a\"", "\"b\"")).unwrap();
        grants.look();
        assert_eq!(grants.of_user("ann"), Some(grant(&["b"])));
    }

    #[test]
    fn what_cannot_be_opened_is_tried_again_although_it_did_not_change() {
        let folder = tempfile::tempdir().unwrap();
        let grants = Grants::new(folder.path()).unwrap();
        // A folder of this name cannot be read.
        let (path, there) = (
            folder.path().join("access.json"),
            folder.path().join("there"),
        );
        fs::write(&there, r#"{"denied": ["host/n1"]}"#).unwrap();
        fs::create_dir(&path).unwrap();
        grants.look();
        fs::remove_dir(&path).unwrap();
        fs::rename(&there, &path).unwrap();
        grants.look();
        assert!(grants.is_denied(&"host/n1".parse().unwrap()));
    }
}
