//! A real scheduler, and nodes that it may use.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use http::Method;
use serde_json::json;

use super::{ADMIN, Server, program};
use crate::server::within;

impl Server {
    /// The component for PodGroups as it is shipped.
    pub(in crate::semantics) async fn install_pod_groups(&self, api: &str) {
        self.grant("pod-groups").await;
        self.until_listed(&format!("/apis/{api}/podgroups")).await;
    }

    /// A real scheduler, with these flags. Returns false if there is no program for it.
    pub(in crate::semantics) fn start_scheduler(&mut self, flags: &[&str]) -> bool {
        let Some(program) = program("kube-scheduler", "TEST_ASSET_KUBE_SCHEDULER") else {
            return false;
        };
        let folder = self.folder.path();
        let file = self.kubeconfig("scheduler", ADMIN);
        let log = fs::File::create(folder.join("scheduler.log")).unwrap();
        let mut command = Command::new(program);
        command.arg(format!("--kubeconfig={}", file.display()));
        // Nobody asks it anything.
        command.args(["--leader-elect=false", "--secure-port=0"]);
        command
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = command.stderr(log).spawn().unwrap();
        self.processes.0.push(process);
        true
    }

    /// The configuration of a program that has this token.
    pub(super) fn kubeconfig(&self, name: &str, token: &str) -> PathBuf {
        let file = self.folder.path().join(format!("{name}.kubeconfig"));
        let cluster = json!({ "server": self.url, "insecure-skip-tls-verify": true });
        let configuration = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        fs::write(&file, configuration.to_string()).unwrap();
        file
    }

    /// A node that is ready for pods, with so many GPUs.
    pub(in crate::semantics) async fn add_node(&self, name: &str, gpus: u32) {
        let node = json!({ "metadata": { "name": name } });
        // The node n1 is there from the beginning.
        drop(within(self.try_ask(Method::POST, "/api/v1/nodes", Some(node))).await);
        let room = json!({ "cpu": "8", "memory": "16Gi", "pods": "20", "nvidia.com/gpu": gpus.to_string() });
        let ready = json!({ "type": "Ready", "status": "True", "reason": "Test", "message": "" });
        let status =
            json!({ "status": { "capacity": room, "allocatable": room, "conditions": [ready] } });
        let path = format!("/api/v1/nodes/{name}/status");
        let patched = self.patch(false, &path, "strategic-merge-patch+json", &status);
        within(patched).await.unwrap();
        // A node that has just come has this taint until a controller has seen it.
        let untainted = json!({ "spec": { "taints": [] } });
        let path = format!("/api/v1/nodes/{name}");
        let patched = self.patch(false, &path, "merge-patch+json", &untainted);
        within(patched).await.unwrap();
    }
}
