//! The definitions of kinds that are adopted, and the rights that the coordinator gets for them.

use std::time::Duration;

use http::Method;
use muster_foreign::adopt::Adoptable;
use serde_json::{Value, json};

use super::{Server, manifest, text_of};
use crate::server::within;

/// The objects of a file with the rules that stand in it as comments.
fn with_comments(file: &str) -> Vec<Value> {
    let text = text_of(file)
        .replace("\n#-", "\n-")
        .replace("\n#  ", "\n  ");
    serde_saphyr::from_multiple(&text).unwrap()
}

impl Server {
    pub(in crate::semantics) async fn define(&self, definition: Value) {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.create(path, definition).await;
    }

    /// The definition of a kind, and the component as it is shipped. For other kinds than PyTorchJob the
    /// rights are given as the component says: each stands where that stands.
    pub(in crate::semantics) async fn install_adoption(&self, kind: &Adoptable, definition: Value) {
        self.define(definition).await;
        let shipped = match kind.has_runtime() {
            true => with_comments("components/adopt/rights.yaml"),
            false => manifest("components/adopt/rights.yaml"),
        };
        for mut object in shipped {
            // As the documents say (docs/adoption.md).
            if object["kind"] == "ClusterRole"
                && !crate::semantics::adoption::has_status_subresource(kind)
            {
                let verbs = object["rules"][0]["verbs"].as_array_mut().unwrap();
                verbs.push(json!("patch"));
            }
            let mut text = object.to_string();
            if kind.plural != "pytorchjobs" {
                let name = format!("muster-coordinator-adopt-{}", kind.full_name());
                text = text
                    .replace("pytorchjobs", kind.plural)
                    .replace("\"kubeflow.org\"", &format!("\"{}\"", kind.group))
                    .replace("muster-coordinator-adopt", &name);
            }
            self.grant_one(serde_json::from_str(&text).unwrap()).await;
        }
        let all = format!("{}/{}", kind.path(), kind.plural);
        self.until_listed(&all).await;
    }

    /// The definition of a kind goes, with all its objects.
    pub(in crate::semantics) async fn uninstall(&self, kind: &Adoptable) {
        let (plural, group) = (kind.plural, kind.group);
        let path =
            format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}");
        within(async {
            let mut look = tokio::time::interval(Duration::from_millis(200));
            while self.try_ask(Method::DELETE, &path, None).await.is_ok() {
                look.tick().await;
            }
        })
        .await;
    }
}
