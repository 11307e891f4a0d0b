//! What an admission adds to the pods of a job: the labels of the nodes on which it has quota, tolerations,
//! and what admission checks ask for.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::object::GROUP;
use crate::{
    desk::Placement,
    server::{Server, Unanswered},
};

/// For so long what was read counts. Kueue itself reads a flavor once, when a job starts.
const READ: Duration = Duration::from_secs(30);

/// The ResourceFlavors that were read.
pub(in crate::pods) struct Flavors {
    server: Server,
    read: Mutex<BTreeMap<String, (Value, Instant)>>,
}

/// Why a pod cannot be as its admission says.
#[derive(Debug, thiserror::Error)]
pub(in crate::pods) enum Unplaced {
    #[error("read the ResourceFlavor {name}: {source}")]
    Read {
        name: String,
        #[source]
        source: Unanswered,
    },
    #[error("the template says {key}={own}, and the admission by Kueue {key}={other}")]
    Conflict {
        key: String,
        own: String,
        other: String,
    },
}

impl Flavors {
    pub(in crate::pods) fn new(server: Server) -> Self {
        Self {
            server,
            read: Mutex::default(),
        }
    }

    /// Puts into a pod what the admission says.
    pub(in crate::pods) async fn place(
        &self,
        pod: &mut Value,
        version: &str,
        placement: &Placement,
    ) -> Result<(), Unplaced> {
        for name in &placement.flavors {
            let flavor = self.flavor(name, version).await?;
            let spec = &flavor["spec"];
            let nodes =
                json!({ "nodeSelector": spec["nodeLabels"], "tolerations": spec["tolerations"] });
            put(pod, &nodes)?;
        }
        placement
            .updates
            .iter()
            .try_for_each(|update| put(pod, update))
    }

    async fn flavor(&self, name: &str, version: &str) -> Result<Value, Unplaced> {
        let known = || self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((flavor, at)) = known().get(name)
            && at.elapsed() < READ
        {
            return Ok(flavor.clone());
        }
        let path = format!("/apis/{GROUP}/{version}/resourceflavors/{name}");
        let flavor: Value = self
            .server
            .get(&path)
            .await
            .map_err(|source| Unplaced::Read {
                name: name.to_owned(),
                source,
            })?;
        known().insert(name.to_owned(), (flavor.clone(), Instant::now()));
        Ok(flavor)
    }
}

/// Adds labels, annotations, a selector of nodes and tolerations. What the pod says differently is a
/// mistake: it would run where the job has no quota.
fn put(pod: &mut Value, own: &Value) -> Result<(), Unplaced> {
    add(&mut pod["metadata"]["labels"], &own["labels"])?;
    add(&mut pod["metadata"]["annotations"], &own["annotations"])?;
    add(&mut pod["spec"]["nodeSelector"], &own["nodeSelector"])?;
    let all = &mut pod["spec"]["tolerations"];
    for toleration in own["tolerations"].as_array().into_iter().flatten() {
        if all.is_null() {
            *all = json!([]);
        }
        if let Some(all) = all.as_array_mut().filter(|all| !all.contains(toleration)) {
            all.push(toleration.clone());
        }
    }
    // A field that nobody has set is not sent.
    for part in ["metadata", "spec"] {
        if let Some(fields) = pod[part].as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
    }
    Ok(())
}

fn add(into: &mut Value, own: &Value) -> Result<(), Unplaced> {
    let Some(own) = own.as_object().filter(|own| !own.is_empty()) else {
        return Ok(());
    };
    if into.is_null() {
        *into = Value::Object(Map::new());
    }
    let Some(there) = into.as_object_mut() else {
        return Ok(());
    };
    for (key, value) in own {
        let before = there.insert(key.clone(), value.clone());
        if let Some(before) = before.filter(|before| before != value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Err(Unplaced::Conflict {
                key: key.clone(),
                own: text(&before),
                other: text(value),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_what_it_has_not_and_never_something_else() {
        let gpu = json!({ "key": "nvidia.com/gpu", "operator": "Exists" });
        let mut pod =
            json!({ "metadata": { "labels": { "a": "1" } }, "spec": { "tolerations": [gpu] } });
        let spot = json!({ "key": "spot", "operator": "Exists" });
        let flavor = json!({ "nodeSelector": { "pool": "spot" }, "tolerations": [spot, gpu] });
        put(&mut pod, &flavor).unwrap();
        let update = json!({ "labels": { "a": "1", "b": "2" }, "annotations": { "c": "3" } });
        put(&mut pod, &update).unwrap();
        let expected = json!({
            "metadata": { "labels": { "a": "1", "b": "2" }, "annotations": { "c": "3" } },
            "spec": { "tolerations": [gpu, spot], "nodeSelector": { "pool": "spot" } },
        });
        assert_eq!(pod, expected);
        let other = json!({ "nodeSelector": { "pool": "reserved" } });
        let why = put(&mut pod, &other).unwrap_err().to_string();
        assert_eq!(
            why,
            "the template says pool=spot, and the admission by Kueue pool=reserved"
        );
        let mut plain = json!({ "metadata": {}, "spec": {} });
        put(
            &mut plain,
            &json!({ "nodeSelector": null, "tolerations": null }),
        )
        .unwrap();
        assert_eq!(plain, json!({ "metadata": {}, "spec": {} }));
    }
}
