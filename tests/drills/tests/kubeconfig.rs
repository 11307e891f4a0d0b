//! Users with an ordinary kubeconfig: real `muster`, a real coordinator, and an API server that is not
//! there. One test has a stand-in for kubectl, which forwards ports; the other has the kubectl of this
//! machine, which logs in with an exec plugin.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use muster_drills::{kill, lives, program, python, scripts, until};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The answer of `muster get jobs` to a caller who may look, where there is no job.
const NO_JOBS: &str = "No jobs found in namespace team-a.\n";

/// A cluster with a coordinator, and a user's home.
struct Site {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
    coordinator: u16,
    api: u16,
}

impl Drop for Site {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Site {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut site = Self {
            folder,
            daemons: Vec::new(),
            coordinator: 0,
            api: 0,
        };
        for name in ["bin", "forwards", "elsewhere"] {
            fs::create_dir(site.path(name)).unwrap();
        }
        site.start_api_server();
        site.start_coordinator();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_api_server(&mut self) {
        let (key, own) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut authority = CertificateParams::default();
        authority
            .distinguished_name
            .push(DnType::CommonName, "authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let trusted = authority.self_signed(&key).unwrap();
        let names = CertificateParams::new(vec!["localhost".into()]).unwrap();
        let certificate = names.signed_by(&own, &Issuer::new(authority, key));
        fs::write(self.path("ca.crt"), trusted.pem()).unwrap();
        fs::write(self.path("api.crt"), certificate.unwrap().pem()).unwrap();
        fs::write(self.path("api.key"), own.serialize_pem()).unwrap();
        let mut server = Command::new(python())
            .arg(scripts().join("kubeconfig/api_server.py"))
            .args([self.path("api.crt"), self.path("api.key")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = server.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        self.daemons.push(server);
        self.api = line.trim().parse().unwrap();
    }

    /// A kubeconfig for this cluster. Its context `here` has the namespace team-a.
    fn kubeconfig(&self, name: &str, user: Value) -> PathBuf {
        let path = self.path(name);
        let server = format!("https://localhost:{}", self.api);
        let cluster = json!({ "server": server, "certificate-authority": self.path("ca.crt") });
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{ "name": "it", "cluster": cluster }],
            "users": [{ "name": "me", "user": user }],
            "contexts": [{ "name": "here", "context": { "cluster": "it", "user": "me", "namespace": "team-a" } }],
        });
        fs::write(&path, content.to_string()).unwrap();
        path
    }

    fn start_coordinator(&mut self) {
        let kubeconfig = self.kubeconfig("coordinator.json", json!({}));
        // The namespace of a pod is where its service account's files say; here it is the context's.
        let text = fs::read_to_string(&kubeconfig).unwrap();
        fs::write(&kubeconfig, text.replace("team-a", "muster-system")).unwrap();
        let ready = self.path("ready.json");
        let log = fs::File::create(self.path("coordinator.log")).unwrap();
        let mut command = without_settings(&program("muster-coordinator"));
        command
            .args(["--listen", "127.0.0.1:0", "--kubernetes-users"])
            .arg("--server-names=muster-coordinator.muster-system.svc,localhost")
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--ready-file")
            .arg(&ready)
            .env("KUBECONFIG", kubeconfig)
            .stderr(log);
        self.daemons.push(command.spawn().unwrap());
        let port = until(|| {
            let ready: Value = serde_json::from_slice(&fs::read(&ready).ok()?).ok()?;
            ready["endpoint"].as_str()?.rsplit_once(':')?.1.parse().ok()
        });
        self.coordinator = port.unwrap_or_else(|| panic!("{}", self.log()));
        // Users know it by what it has published.
        let log = || self.log().contains("authorities are in the ConfigMap");
        until(|| log().then_some(())).unwrap_or_else(|| panic!("{}", self.log()));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("coordinator.log")).unwrap()
    }

    fn plays_kubectl(&self) {
        let script = scripts().join("kubeconfig/stand_in.py");
        let text = format!("#!/bin/sh\nexec {} {} \"$@\"\n", python(), script.display());
        executable(&self.path("bin/kubectl"), &text);
    }

    /// `muster` of a user with this kubeconfig.
    fn command(&self, kubeconfig: &Path, words: &[&str]) -> Command {
        let mut command = without_settings(&program("muster"));
        let path = env::var("PATH").unwrap_or_default();
        command
            .args(words)
            .env("MUSTER_CONFIG", self.path("config.yaml"))
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("KUBECONFIG", kubeconfig)
            .env("FORWARDS", self.path("forwards"))
            .env("COORDINATOR_PORT", self.coordinator.to_string());
        command
    }

    fn muster(&self, kubeconfig: &Path, words: &[&str]) -> (i32, String) {
        text(self.command(kubeconfig, words).output().unwrap())
    }

    /// The pids of the forwards that were begun, with their ports.
    fn forwards(&self) -> Vec<(u64, String)> {
        let folder = fs::read_dir(self.path("forwards")).unwrap();
        let read = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let port = fs::read_to_string(entry.path()).ok()?;
            (lives(pid) && !port.is_empty()).then_some((pid, port))
        };
        folder.filter_map(read).collect()
    }
}

fn without_settings(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars().filter(|(name, _)| name.starts_with("MUSTER_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn text(output: Output) -> (i32, String) {
    let both = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8(both).unwrap(),
    )
}

#[test]
fn a_kubeconfig_is_enough() {
    let site = Site::start();
    site.plays_kubectl();
    let own = site.kubeconfig("kubeconfig.json", json!({}));
    let none = site.muster(
        &own,
        &[
            "config",
            "set-context",
            "prod",
            "--kubernetes",
            "--service-account",
            "ann",
        ],
    );
    assert_eq!(none.0, 5, "{}", none.1);
    assert!(
        none.1.contains("kubectl create rolebinding ann -n team-a --clusterrole muster-submitter --serviceaccount team-a:ann"),
        "{}",
        none.1
    );
    let set = site.muster(&own, &["config", "set-context", "prod", "--kubernetes"]);
    assert_eq!(set, (0, "the context is prod now\n".into()));
    // From now on the context says which kubeconfig, whatever this one becomes.
    let other = site.path("elsewhere/none.json");
    let (code, said) = site.muster(&other, &["whoami"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.starts_with("kubernetes/system:serviceaccount:team-a:muster"),
        "{said}"
    );
    assert_eq!(site.muster(&other, &["get", "jobs"]), (0, NO_JOBS.into()));
    let (code, said) = site.muster(&other, &["get", "jobs", "-n", "team-b"]);
    assert_eq!(code, 5, "{said}");
    assert!(
        said.contains("may not list musterjobs in namespace team-b"),
        "{said}"
    );
    let kept = fs::read_to_string(site.path("config.yaml")).unwrap();
    assert!(!kept.contains("BEGIN") && !kept.contains("eyJ"), "{kept}");
    let (_, said) = site.muster(&other, &["config", "get-contexts"]);
    assert!(said.contains("(kubectl port-forward)"), "{said}");
    until(|| site.forwards().is_empty().then_some(())).expect("no forward outlives its command");
}

#[test]
fn a_forward_comes_back_and_ends_with_its_command() {
    let site = Site::start();
    site.plays_kubectl();
    let own = site.kubeconfig("kubeconfig.json", json!({}));
    let set = site.muster(&own, &["config", "set-context", "prod", "--kubernetes"]);
    assert_eq!(set.0, 0, "{}", set.1);
    // There is no node, so the job waits.
    let words = [
        "run", "--name", "waits", "--nnodes", "1", "--wait", "train.py",
    ];
    let mut follows = site.command(&own, &words);
    let mut follows = follows.stderr(Stdio::null()).spawn().unwrap();
    let one = || {
        let found = site.forwards();
        (found.len() == 1).then(|| found[0].clone())
    };
    let there = || site.muster(&own, &["get", "job", "waits"]).0 == 0;
    until(|| there().then_some(())).expect("the job is accepted");
    let (first, port) = until(one).unwrap();
    kill(first, Signal::KILL);
    let (_, again) = until(|| one().filter(|(pid, _)| *pid != first)).unwrap();
    assert_eq!(
        again, port,
        "what follows finds the next pod at the same port"
    );
    assert_eq!(site.muster(&own, &["cancel", "waits"]).0, 0);
    let ended = until(|| follows.try_wait().unwrap()).expect("it hears of the end");
    assert_eq!(ended.code(), Some(6));

    let mut killed = site.command(&own, &["get", "jobs", "-w"]);
    let mut killed = killed.stdout(Stdio::null()).spawn().unwrap();
    let (forward, _) = until(one).unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    until(|| (!lives(forward)).then_some(())).expect("it ends with its command, killed or not");
}

#[test]
fn kubectl_itself_logs_in_with_an_exec_plugin() {
    let client = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    if !client.is_ok_and(|output| output.status.success()) {
        println!("!!! NOT CHECKED: kubectl itself (there is no kubectl on PATH)");
        return;
    }
    let site = Site::start();
    let plugin = site.path("plugin");
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"user"}}"#;
    executable(&plugin, &format!("#!/bin/sh\necho '{credential}'\n"));
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "interactiveMode": "Never",
    });
    let own = site.kubeconfig("kubeconfig.json", json!({ "exec": exec }));
    let url = format!("https://localhost:{}", site.coordinator);
    let words = [
        "config",
        "set-context",
        "prod",
        "--kubernetes",
        "--url",
        &url,
    ];
    let (code, said) = site.muster(&own, &words);
    assert_eq!(code, 0, "{said}");
    let (code, said) = site.muster(&own, &["get", "jobs"]);
    assert_eq!((code, said.as_str()), (0, NO_JOBS));
    // Without the plugin there is no way in.
    fs::remove_file(&plugin).unwrap();
    let (code, said) = site.muster(&own, &["get", "jobs"]);
    assert_eq!(code, 5, "{said}");
}
