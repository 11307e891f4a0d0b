//! MusterJob objects, as an API server with their definition has them: versions and generations,
//! subresources that do not touch each other, finalizers. It knows no schema and no rules.
//! And events, which are only kept.

use serde_json::{Value, json};

use super::{
    State,
    objects::merge,
    wire::{Answer, Asked, failure},
};

const WHAT: &str = "musterjobs";

type Place = (String, String);

/// The namespace, the name and the subresource in
/// `/apis/muster.dev/v1alpha1/namespaces/NAMESPACE/musterjobs/NAME/PART`.
fn place(path: &str) -> (Place, String) {
    let parts: Vec<&str> = path.split('/').collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default().to_owned();
    ((part(5), part(7)), part(8))
}

fn conflict(name: &str) -> Answer {
    let why = format!(
        "Operation cannot be fulfilled on musterjobs.muster.dev {name:?}: the object has been modified; please apply your changes to the \
         latest version and try again"
    );
    failure(409, "Conflict", &why)
}

impl State {
    pub(super) fn job_objects(&mut self, verb: &str, asked: &Asked) -> Answer {
        let ((namespace, name), part) = place(&asked.path);
        let place = (namespace, name);
        let missing = || {
            let why = format!("musterjobs.muster.dev {:?} not found", place.1);
            failure(404, "NotFound", &why)
        };
        let from = asked.query.get("resourceVersion");
        let from: u64 = from.and_then(|text| text.parse().ok()).unwrap_or_default();
        match verb {
            "watch" if from < self.oldest && self.gone_as_status => {
                failure(410, "Expired", "too old resource version")
            }
            "watch" => {
                self.watches += 1;
                Answer::Watch {
                    what: WHAT,
                    from,
                    cuts: self.cuts,
                }
            }
            "list" => {
                self.lists += 1;
                let adopted = asked.query.get("labelSelector");
                let adopted = adopted.is_some_and(|label| label == "muster.dev%2Fadopted");
                let is_meant = |object: &&Value| {
                    !adopted || object["metadata"]["labels"]["muster.dev/adopted"].is_string()
                };
                let items: Vec<&Value> = self.jobs.values().filter(is_meant).collect();
                let list = json!({
                    "kind": "MusterJobList",
                    "apiVersion": "muster.dev/v1alpha1",
                    "metadata": { "resourceVersion": self.version.to_string() },
                    "items": items,
                });
                Answer::Whole(200, list)
            }
            "create" => self.create_job(place.0, asked.body()),
            _ => match (verb, self.jobs.get(&place).cloned()) {
                (_, None) => missing(),
                ("patch", Some(old)) => self.patch_job(&place, &part, old, asked.body()),
                ("delete", Some(old)) => self.delete_job(&place, old),
                (_, Some(old)) if part == "scale" => Answer::Whole(200, scale(&old)),
                (_, Some(old)) => Answer::Whole(200, old),
            },
        }
    }

    fn create_job(&mut self, namespace: String, mut object: Value) -> Answer {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let place = (namespace, name);
        if self.jobs.contains_key(&place) {
            let why = format!("musterjobs.muster.dev {:?} already exists", place.1);
            return failure(409, "AlreadyExists", &why);
        }
        object.as_object_mut().unwrap().remove("status");
        let metadata = &mut object["metadata"];
        metadata["namespace"] = json!(place.0);
        metadata["uid"] = json!(format!("00000000-0000-4000-8000-{:012x}", self.version + 1));
        metadata["generation"] = json!(1);
        metadata["creationTimestamp"] = json!("2026-11-23T10:00:00Z");
        Answer::Whole(201, self.set_job(place, object, "ADDED"))
    }

    fn patch_job(&mut self, place: &Place, part: &str, old: Value, patch: Value) -> Answer {
        let asked = &patch["metadata"]["resourceVersion"];
        if !asked.is_null() && *asked != old["metadata"]["resourceVersion"] {
            return conflict(&place.1);
        }
        let mut merged = old.clone();
        merge(&mut merged, patch);
        let mut new = old.clone();
        match part {
            "status" => new["status"] = merged["status"].clone(),
            "scale" => new["spec"]["replicas"] = merged["spec"]["replicas"].clone(),
            _ => {
                new = merged;
                keep(&mut new, &old, "status");
                for field in [
                    "uid",
                    "generation",
                    "creationTimestamp",
                    "deletionTimestamp",
                ] {
                    keep(&mut new["metadata"], &old["metadata"], field);
                }
            }
        }
        if finalizers(&new) == 0 {
            new["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("finalizers");
        }
        if new["spec"] != old["spec"] {
            let generation = old["metadata"]["generation"].as_u64().unwrap();
            new["metadata"]["generation"] = json!(generation + 1);
        }
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        let deleted = !old["metadata"]["deletionTimestamp"].is_null();
        let shown = match deleted && finalizers(&new) == 0 {
            true => self.drop_job(place, new),
            false if new == old => new,
            false => self.set_job(place.clone(), new, "MODIFIED"),
        };
        Answer::Whole(
            200,
            if part == "scale" {
                scale(&shown)
            } else {
                shown
            },
        )
    }

    fn delete_job(&mut self, place: &Place, mut object: Value) -> Answer {
        if finalizers(&object) == 0 {
            return Answer::Whole(200, self.drop_job(place, object));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-23T11:00:00Z");
            let generation = object["metadata"]["generation"].as_u64().unwrap();
            object["metadata"]["generation"] = json!(generation + 1);
            object = self.set_job(place.clone(), object, "MODIFIED");
        }
        Answer::Whole(200, object)
    }

    fn set_job(&mut self, place: Place, mut object: Value, change: &str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = json!({ "type": change, "object": object });
        self.log.push((self.version, WHAT, event));
        self.jobs.insert(place, object.clone());
        object
    }

    fn drop_job(&mut self, place: &Place, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = json!({ "type": "DELETED", "object": object });
        self.log.push((self.version, WHAT, event));
        self.jobs.remove(place);
        object
    }

    pub(super) fn tell_event(&mut self, asked: &Asked) -> Answer {
        assert_eq!(asked.method, "POST", "{}", asked.head);
        let event = asked.body();
        for needed in [
            "eventTime",
            "reportingController",
            "reportingInstance",
            "action",
            "reason",
        ] {
            assert!(event[needed].is_string(), "{needed}: {event}");
        }
        self.events.push(event.clone());
        Answer::Whole(201, event)
    }
}

/// The field stays as it was.
fn keep(new: &mut Value, old: &Value, field: &str) {
    let fields = new.as_object_mut().unwrap();
    match old.get(field) {
        Some(value) => drop(fields.insert(field.to_owned(), value.clone())),
        None => drop(fields.remove(field)),
    }
}

fn finalizers(object: &Value) -> usize {
    let all = object["metadata"]["finalizers"].as_array();
    all.map_or(0, Vec::len)
}

fn scale(object: &Value) -> Value {
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": object["metadata"],
        "spec": { "replicas": object["spec"]["replicas"] },
        "status": { "replicas": object["status"]["replicas"], "selector": object["status"]["selector"] },
    })
}
