//! Which version of a group of objects the cluster has. Objects that somebody else installs, or that
//! Kubernetes is still changing, are used in the best version that both sides know. This asks, and
//! changes nothing.

use serde_json::Value;

use crate::server::Server;

/// A group of objects that a cluster may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) name: &'static str,
    /// Who brings it, for people.
    pub(super) owner: &'static str,
    /// The versions that are known here, best first.
    pub(super) versions: &'static [&'static str],
}

impl Group {
    /// The version to use, or why there is none.
    pub(super) async fn version(&self, server: &Server) -> Result<&'static str, String> {
        let found = server.get::<Value>(&self.path()).await;
        match found {
            Ok(group) => self.best(&names(&group)).ok_or_else(|| {
                format!(
                    "{} of the cluster has none of the versions {} of {}",
                    self.owner,
                    self.versions.join(", "),
                    self.name
                )
            }),
            Err(why) if why.is_missing() => Err(format!(
                "the cluster has no {} (the API server does not know {})",
                self.owner, self.name
            )),
            Err(why) => Err(format!("ask for the versions of {}: {why}", self.name)),
        }
    }

    /// Whether the API server would now be asked in another version. One that does not answer has not changed.
    pub(super) async fn has_changed(&self, server: &Server, version: &str) -> bool {
        match server.get::<Value>(&self.path()).await {
            Ok(group) => self.best(&names(&group)) != Some(version),
            Err(why) => why.is_missing(),
        }
    }

    fn path(&self) -> String {
        format!("/apis/{}", self.name)
    }

    fn best(&self, versions: &[String]) -> Option<&'static str> {
        let has = |known: &&&str| versions.iter().any(|one| one == **known);
        self.versions.iter().find(has).copied()
    }
}

fn names(group: &Value) -> Vec<String> {
    let versions = group["versions"].as_array().into_iter().flatten();
    let names = versions.filter_map(|one| one["version"].as_str());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_version_that_both_know_is_used() {
        let known = Group {
            name: "kueue.x-k8s.io",
            owner: "Kueue",
            versions: &["v1beta2", "v1beta1"],
        };
        let group = |versions: &[&str]| {
            let all: Vec<Value> = versions
                .iter()
                .map(|one| json!({ "version": one }))
                .collect();
            known.best(&names(&json!({ "versions": all })))
        };
        assert_eq!(group(&["v1beta1", "v1beta2"]), Some("v1beta2"));
        assert_eq!(group(&["v1beta1", "v1alpha1"]), Some("v1beta1"));
        assert_eq!(group(&["v1"]), None);
        assert_eq!(group(&[]), None);
    }
}
