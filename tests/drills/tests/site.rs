//! A cluster whose certificates its site issues: files that are replaced while a job trains, names
//! that count, and names that do not.
#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use muster_drills::{pids, processes_of, program, scripts, until};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use serde_json::{Value, json};

/// An authority of the site.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn make(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// Puts a certificate with these names and its key into a folder, as a helper on the machine
    /// does: each file is replaced.
    fn issue(&self, folder: &Path, names: Vec<SanType>, usage: ExtendedKeyUsagePurpose) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![usage];
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        fs::create_dir_all(folder).unwrap();
        put(&folder.join("tls.crt"), &chain);
        put(&folder.join("tls.key"), &key.serialize_pem());
    }

    fn server(&self, folder: &Path) {
        let names = vec![
            SanType::DnsName("localhost".try_into().unwrap()),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        self.issue(folder, names, ExtendedKeyUsagePurpose::ServerAuth);
    }

    fn client(&self, folder: &Path, uri: &str) {
        let names = vec![SanType::URI(uri.try_into().unwrap())];
        self.issue(folder, names, ExtendedKeyUsagePurpose::ClientAuth);
    }
}

fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

/// A coordinator, two agents and users of this site.
struct Site {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
    address: SocketAddr,
}

impl Site {
    fn start(authority: &Authority) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("muster-site-")
            .tempdir()
            .unwrap();
        let mut site = Self {
            folder,
            daemons: Vec::new(),
            address: ([127, 0, 0, 1], 0).into(),
        };
        put(&site.path("ca.crt"), &authority.certificate);
        authority.server(&site.path("server"));
        let ready = site.path("ready.json");
        let mut coordinator = Command::new(program("muster-coordinator"));
        coordinator
            .args(["--listen", "127.0.0.1:0", "--state-dir"])
            .arg(site.path("coordinator"))
            .args(["--host-id", "spiffe://corp.example/gpu/{name}/agent"])
            .args(["--user-id", "spiffe://corp.example/people/{name}"]);
        for (flag, file) in [
            ("--tls-cert-file", "server/tls.crt"),
            ("--tls-private-key-file", "server/tls.key"),
            ("--client-ca-file", "ca.crt"),
            ("--ready-file", "ready.json"),
        ] {
            coordinator.arg(flag).arg(site.path(file));
        }
        site.spawn(coordinator, "coordinator.log");
        site.address = until(|| {
            let ready: Value = serde_json::from_slice(&fs::read(&ready).ok()?).ok()?;
            let port = ready["endpoint"].as_str()?.rsplit_once(':')?.1.parse();
            Some(([127, 0, 0, 1], port.ok()?).into())
        })
        .unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spawn(&mut self, mut command: Command, log: &str) {
        let log = fs::File::create(self.path(log)).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    /// Starts the agent of this node, with the certificate in the folder of its name.
    fn agent(&mut self, node: &str) {
        let mut agent = Command::new(program("muster-agent"));
        agent
            .arg("--allow-root-workers")
            .args(["--node-name", node, "--coordinator"])
            .arg(format!("https://{}", self.address))
            .arg("--runner")
            .arg(program("muster-runner"))
            .arg("--state-dir")
            .arg(self.path(&format!("state-{node}")))
            .arg("--ca-file")
            .arg(self.path("ca.crt"))
            .arg("--client-certificate")
            .arg(self.path(node).join("tls.crt"))
            .arg("--client-key")
            .arg(self.path(node).join("tls.key"));
        self.spawn(agent, &format!("{node}.log"));
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap()
    }

    /// Runs `muster` as somebody with a context of this name, or the coordinator's own command.
    fn try_say(&self, mut command: Command) -> Output {
        command.env("MUSTER_CONFIG", self.path("config.yaml"));
        command.stdin(Stdio::null()).output().unwrap()
    }

    fn muster(&self, who: &str, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program("muster"));
        command.args(["--context", who]).args(args);
        let output = self.try_say(command);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => Err(text(output.stderr)),
        }
    }

    /// The user's context: its certificate is in the folder of its name.
    fn add_context(&self, who: &str) {
        let mut command = Command::new(program("muster"));
        command
            .args(["config", "set-context", who, "--url"])
            .arg(format!("https://{}", self.address))
            .arg("--ca-file")
            .arg(self.path("ca.crt"))
            .arg("--client-certificate")
            .arg(self.path(who).join("tls.crt"))
            .arg("--client-key")
            .arg(self.path(who).join("tls.key"));
        let output = self.try_say(command);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{why}");
    }

    fn admin(&self, args: &[&str]) {
        let mut command = Command::new(program("muster-coordinator"));
        command
            .args(args)
            .arg("--state-dir")
            .arg(self.path("coordinator"));
        let output = self.try_say(command);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {why}");
    }

    fn status(&self) -> Option<Value> {
        let text = self.muster("ann", &["get", "job", "job", "-o", "json"]);
        let job: Value = serde_json::from_str(&text.ok()?).ok()?;
        job.get("status").cloned()
    }

    fn ready_nodes(&self) -> Option<usize> {
        let text = self.muster("ann", &["nodes", "-o", "json"]).ok()?;
        let nodes: Value = serde_json::from_str(&text).ok()?;
        let nodes = nodes["items"].as_array()?.iter();
        Some(
            nodes
                .filter(|node| node["status"]["state"] == "Ready")
                .count(),
        )
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        for (pid, _) in processes_of(self.folder.path()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

fn text_of(site: &Site, what: &str, says: &str) {
    let found = until(|| site.log(what).contains(says).then_some(()));
    assert!(
        found.is_some(),
        "{what} does not say {says:?}: {}",
        site.log(what)
    );
}

#[test]
fn a_site_issues_all_certificates_and_replaces_them_under_a_job() {
    let (old, other) = (Authority::make("corp 1"), Authority::make("stranger"));
    let mut site = Site::start(&old);
    for node in ["n1", "n2"] {
        old.client(
            &site.path(node),
            &format!("spiffe://corp.example/gpu/{node}/agent"),
        );
        site.agent(node);
    }
    for (who, uri) in [
        ("ann", "spiffe://corp.example/people/ann"),
        // A certificate of the site, for something else.
        ("printer", "spiffe://corp.example/printers/p7"),
    ] {
        old.client(&site.path(who), uri);
        site.add_context(who);
    }

    let whoami = site.muster("ann", &["whoami"]).unwrap();
    assert!(whoami.starts_with("user/ann"), "{whoami}");
    let why = site.muster("ann", &["nodes"]).unwrap_err();
    assert!(why.contains("user/ann"), "{why}");
    site.admin(&["user", "set", "ann", "--role", "admin", "--all-namespaces"]);
    assert_eq!(
        until(|| site.ready_nodes().filter(|n| *n == 2)),
        Some(2),
        "{}",
        site.log("n1")
    );
    let why = site.muster("printer", &["nodes"]).unwrap_err();
    assert!(why.contains("refuses"), "{why}");
    other.client(&site.path("mallory"), "spiffe://corp.example/people/ann");
    site.add_context("mallory");
    let why = site.muster("mallory", &["whoami"]).unwrap_err();
    assert!(why.contains("certificate"), "{why}");
    // A node cannot be another, and an authority that issues nothing lets nobody join.
    old.client(&site.path("n3"), "spiffe://corp.example/gpu/n1/agent");
    site.agent("n3");
    text_of(&site, "n3", "the certificate is for node n1");
    let mut join = Command::new(program("muster-agent"));
    join.args(["join", &format!("https://{}", site.address)])
        .args(["--node-name", "n4", "--ca-file"])
        .arg(site.path("ca.crt"))
        .arg("--state-dir")
        .arg(site.path("state-n4"))
        .env(
            "MUSTER_TOKEN",
            format!("{}.{}", "0".repeat(8), "0".repeat(64)),
        );
    let joined = site.try_say(join);
    let why = String::from_utf8_lossy(&joined.stderr);
    assert!(why.contains("those of its site"), "{why}");

    let stand_in = scripts().join("stand-in");
    let job = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "MusterJob", "metadata": {"name": "job"},
        "spec": {
            "replicas": 2, "procPerNode": 1, "gpusPerNode": 0, "launch": "cold",
            "command": [stand_in.join("python3")], "args": [stand_in.join("train.sh")], "workingDir": site.folder.path(),
            "env": [{"name": "PATH", "value": "/usr/bin:/bin"}, {"name": "FLEET", "value": site.folder.path()}],
        }
    });
    fs::write(site.path("job.json"), job.to_string()).unwrap();
    let file = site.path("job.json");
    site.muster("ann", &["submit", "-f", file.to_str().unwrap()])
        .unwrap();
    let running = |site: &Site| site.status().filter(|status| status["nodesRunning"] == 2);
    let before = until(|| running(&site)).unwrap();

    // The site changes its authority: first all trust both, then all have certificates of the new
    // one, then the old one is forgotten.
    let new = Authority::make("corp 2");
    let both = format!("{}{}", old.certificate, new.certificate);
    put(&site.path("ca.crt"), &both);
    text_of(
        &site,
        "coordinator",
        "the certificates of this site have changed",
    );
    new.server(&site.path("server"));
    new.client(&site.path("ann"), "spiffe://corp.example/people/ann");
    let whoami = until(|| site.muster("ann", &["whoami"]).ok()).unwrap();
    assert!(whoami.starts_with("user/ann"), "{whoami}");
    for node in ["n1", "n2"] {
        new.client(
            &site.path(node),
            &format!("spiffe://corp.example/gpu/{node}/agent"),
        );
    }
    put(&site.path("ca.crt"), &new.certificate);
    old.client(&site.path("late"), "spiffe://corp.example/people/ann");
    site.add_context("late");
    let refused = || site.muster("late", &["whoami"]).err();
    let why = until(refused).unwrap();
    assert!(why.contains("certificate"), "{why}");

    // A new agent of n1 finds its worker again, by the new authority.
    let mut agent = site.daemons.remove(1);
    agent.kill().unwrap();
    agent.wait().unwrap();
    site.agent("n1");
    assert_eq!(
        until(|| site.ready_nodes().filter(|n| *n == 2)),
        Some(2),
        "{}",
        site.log("n1")
    );
    let after = until(|| running(&site)).unwrap();
    assert_eq!(
        (&after["generation"], pids(&after)),
        (&before["generation"], pids(&before)),
        "the same workers"
    );

    // Names are denied as with an own authority.
    site.admin(&["deny", "host/n2"]);
    text_of(&site, "n2", "denied");
    site.muster("ann", &["cancel", "job"]).unwrap();
    site.admin(&["allow", "host/n2"]);
    let left = || {
        let (all, daemons) = (processes_of(site.folder.path()), &site.daemons);
        let is_daemon = |pid: u32| daemons.iter().any(|daemon| daemon.id() == pid);
        all.iter().all(|(pid, _)| is_daemon(*pid)).then_some(())
    };
    assert!(
        until(left).is_some(),
        "{:?}",
        processes_of(site.folder.path())
    );
}
