//! People who are not looking are told, by real requests to receivers that are slow, broken or hostile.

use std::{fs, net::SocketAddr, path::Path, sync::Arc};

use muster_coordinator::{
    notify,
    store::{Store, redb::RedbStore},
};
use muster_core::{exit::Exit, fleet::Policy};
use muster_proto::v1;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};
use tonic::Code;

use crate::{
    access::Secure,
    agent::{FakeAgent, Order},
    process::Running,
    server::{Server, phase, spec, within},
};
use muster_coordinator::trust::Role;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A request that a receiver has got.
#[derive(Debug)]
struct Got {
    head: String,
    body: Value,
    text: String,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// How a receiver behaves to one request.
#[derive(Clone, Copy)]
enum Answer {
    /// Says this, and closes.
    Says(&'static str),
    /// Says this, and then sends the letter x for ever.
    Endless(&'static str),
    /// Says nothing, and keeps the connection.
    Silent,
}

/// A program that receives.
struct Receiver {
    address: SocketAddr,
    got: mpsc::Receiver<Got>,
    serving: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Receiver {
    /// Answers its requests in this way, one after the other, and the rest as the last.
    async fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, got) = mpsc::channel(64);
        let serving = tokio::spawn(async move {
            let (mut kept, mut answers) = (Vec::new(), answers.into_iter().peekable());
            let mut last = Answer::Says(OK);
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                last = answers.next().unwrap_or(last);
                let mut stream = BufReader::new(stream);
                if let Some(request) = read(&mut stream).await {
                    out.send(request).await.unwrap();
                }
                if answer(&mut stream, last).await {
                    kept.push(stream);
                }
            }
        });
        Self {
            address,
            got,
            serving,
        }
    }

    async fn next(&mut self) -> Got {
        within(self.got.recv()).await.unwrap()
    }
}

async fn read(stream: &mut (impl AsyncRead + Unpin + AsyncBufReadExt)) -> Option<Got> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        let line = line.trim_end();
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().unwrap();
        }
        head.push_str(line);
        head.push('\n');
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Got {
        head,
        body: serde_json::from_slice(&body).unwrap(),
        text: String::from_utf8(body).unwrap(),
    })
}

/// Whether the connection is kept.
async fn answer(stream: &mut (impl AsyncWrite + Unpin), answer: Answer) -> bool {
    match answer {
        Answer::Says(text) => {
            // A caller that went away does not need it.
            let _ = stream.write_all(text.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
        Answer::Endless(text) => {
            let _ = stream.write_all(text.as_bytes()).await;
            while stream.write_all(&[b'x'; 65_536]).await.is_ok() {}
        }
        Answer::Silent => return true,
    }
    false
}

/// A folder with the operator's file: one receiver, `hook`, that is told of all that ends and of cordons.
fn file(folder: &Path, url: &str, more: &str) -> std::path::PathBuf {
    fs::write(folder.join("url"), url).unwrap();
    let path = folder.join("notify.yaml");
    let url = folder.join("url");
    let text = format!(
        "
cluster: lab
gatherFor: 0s
receivers:
- name: hook
  webhook:
    urlFile: {}{more}
rules:
- on: [jobFailed, jobSucceeded, nodeCordoned]
  receivers: [hook]
",
        url.display()
    );
    fs::write(&path, text).unwrap();
    path
}

/// A coordinator that tells this address.
async fn telling(url: &str, more: &str) -> (Server, TempDir) {
    let (state, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut settings = Server::settings(&state, Policy::default());
    settings.notify = Some(notify::read(&file(folder.path(), url, more)).unwrap());
    let path = state.path().to_owned();
    let open = move || RedbStore::open(&path).map(|store| Box::new(store) as Box<dyn Store>);
    let server = Box::pin(Server::start_on(state, settings, open)).await;
    (server, folder)
}

pub(crate) async fn listed(server: &Server) -> v1::Receiver {
    let mut client = server.clients.notifications();
    let request = v1::ListReceiversRequest {};
    let answer = within(client.list_receivers(request)).await.unwrap();
    answer.into_inner().receivers.remove(0)
}

pub(crate) async fn tested(server: &Server) -> v1::TestReceiverResponse {
    let mut client = server.clients.notifications();
    let request = v1::TestReceiverRequest {
        name: "hook".into(),
    };
    let answer = within(client.test_receiver(request)).await.unwrap();
    answer.into_inner()
}

/// Waits until the receiver is like this.
pub(crate) async fn until(server: &Server, wanted: impl Fn(&v1::Receiver) -> bool) -> v1::Receiver {
    within(async {
        let mut look = tokio::time::interval(std::time::Duration::from_millis(50));
        loop {
            look.tick().await;
            let receiver = listed(server).await;
            if wanted(&receiver) {
                return receiver;
            }
        }
    })
    .await
}

/// A job that has no restart left, and fails.
pub(crate) async fn fails(server: &Server, agent: &FakeAgent, name: &str) {
    fails_and_tells(server, agent, name, Vec::new()).await;
}

/// The same, of a job that says who is told of it.
pub(crate) async fn fails_and_tells(
    server: &Server,
    agent: &FakeAgent,
    name: &str,
    notify: Vec<v1::Notify>,
) {
    runs_once(server, name, notify).await;
    agent.orders.send(Order::Exit(Exit::Code(3))).await.unwrap();
    let failed = |job: &v1::Job| phase(job) == v1::JobPhase::Failed;
    server.until_job(name, failed).await;
}

/// A job that has no restart left runs.
pub(crate) async fn runs_once(server: &Server, name: &str, notify: Vec<v1::Notify>) {
    let once = v1::JobSpec {
        restart_policy: Some(v1::RestartPolicy {
            max_restarts: Some(0),
            window: None,
            max_same_failures: None,
        }),
        notify,
        ..spec(1)
    };
    server.submit(name, once).await;
    let runs = |job: &v1::Job| phase(job) == v1::JobPhase::Running;
    server.until_job(name, runs).await;
}

#[tokio::test]
async fn a_job_that_fails_reaches_a_webhook_signed_and_once() {
    let mut receiver = Receiver::start(vec![Answer::Says(OK)]).await;
    let url = format!("http://{}/hooks/SECRET?x=1", receiver.address);
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "the key\n").unwrap();
    let more = format!("\n    keyFile: {0}\n    tokenFile: {0}", key.display());
    let (server, _folder) = telling(&url, &more).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    fails(&server, &agent, "digits").await;
    let got = receiver.next().await;
    assert!(
        got.head.starts_with("POST /hooks/SECRET?x=1 HTTP/1.1\n"),
        "{}",
        got.head
    );
    assert_eq!(got.header("authorization"), Some("Bearer the key"));
    assert_eq!(got.header("muster-id"), got.body["id"].as_str());
    let seconds = got.header("muster-timestamp").unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"the key");
    let signed = ring::hmac::sign(&key, format!("{seconds}.{}", got.text).as_bytes());
    let hex: String = signed
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        got.header("muster-signature"),
        Some(format!("sha256={hex}").as_str())
    );
    let notice = &got.body["notices"][0];
    assert_eq!(
        (
            &got.body["kind"],
            &got.body["cluster"],
            &notice["job"],
            &notice["culprit"]
        ),
        (
            &"jobFailed".into(),
            &"lab".into(),
            &"digits".into(),
            &"rank 0 on node-a".into()
        )
    );
    assert_eq!(notice["cause"], "WorkerFailed");
    assert!(
        !got.text.contains("train.py"),
        "no command lines: {}",
        got.text
    );

    let list = until(&server, |receiver| receiver.waiting == 0).await;
    assert_eq!(
        (list.delivered, list.failed, list.last_error.as_str()),
        (1, 0, "")
    );
    assert_eq!(
        list.address,
        format!("http://{}", receiver.address),
        "without its path"
    );
    assert_eq!(list.kinds, ["jobFailed", "jobSucceeded", "nodeCordoned"]);
    assert!(tested(&server).await.delivered);
    assert_eq!(receiver.next().await.body["kind"], "test");
    assert!(receiver.got.try_recv().is_err(), "each came once");
}

#[tokio::test]
async fn hostile_answers_are_bounded_and_redirects_are_not_followed() {
    let mut elsewhere = Receiver::start(vec![Answer::Says(OK)]).await;
    let to = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
        elsewhere.address
    );
    let cases = [
        (
            Answer::Says(Box::leak(to.into_boxed_str())),
            "HTTP 307, a redirect, which is not followed",
        ),
        (
            Answer::Says("HTTP/1.1 500 No\r\ncontent-length: 10\r\n\r\nno\x1b[2J\nway"),
            "HTTP 500: no[2J way",
        ),
        (
            Answer::Endless("HTTP/1.1 503 No\r\ntransfer-encoding: identity\r\n\r\n"),
            "HTTP 503: xxx",
        ),
        (
            Answer::Endless("HTTP/1.1 200 OK\r\nx-long: "),
            "message head is too large",
        ),
        (
            Answer::Says(""),
            "connection closed before message completed",
        ),
        (
            Answer::Says("SSH-2.0-OpenSSH\r\n"),
            "invalid HTTP version parsed",
        ),
    ];
    let receiver = Receiver::start(cases.iter().map(|(answer, _)| *answer).collect()).await;
    let (server, folder) = telling(&format!("http://{}/", receiver.address), "").await;
    for (_, says) in cases {
        let answer = tested(&server).await;
        assert!(
            !answer.delivered && answer.answer.contains(says),
            "{says}: {answer:?}"
        );
        assert!(answer.answer.len() < 400, "{answer:?}");
    }
    assert!(
        elsewhere.got.try_recv().is_err(),
        "nobody was sent elsewhere"
    );
    assert_eq!(listed(&server).await.failed, 6);
    // A secret that is rotated needs no restart.
    fs::write(
        folder.path().join("url"),
        format!("http://{}/", elsewhere.address),
    )
    .unwrap();
    assert!(tested(&server).await.delivered);
    elsewhere.next().await;
    fs::remove_file(folder.path().join("url")).unwrap();
    let answer = tested(&server).await.answer;
    assert!(
        answer.starts_with("read ") && answer.contains("No such file"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_receiver_that_puts_off_a_jobs_message_has_the_operators_at_once() {
    let later = "HTTP/1.1 429 Later\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n";
    let mut receiver = Receiver::start(vec![Answer::Says(later), Answer::Says(OK)]).await;
    let url = format!("http://{}/", receiver.address);
    let (server, _folder) = telling(&url, "\njobs: { receivers: [hook] }").await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let started = v1::Notify {
        kinds: vec!["jobStarted".into()],
        receivers: vec!["hook".into()],
        mail: Vec::new(),
    };
    runs_once(&server, "first", vec![started]).await;
    assert_eq!(receiver.next().await.body["kind"], "jobStarted");
    let put_off = until(&server, |receiver| receiver.failed == 1).await;
    let said = put_off.last_error_of_jobs.as_str();
    assert_eq!((put_off.last_error.as_str(), said), ("", "HTTP 429"));
    agent.orders.send(Order::Exit(Exit::Code(3))).await.unwrap();
    assert_eq!(receiver.next().await.body["kind"], "jobFailed");
    let list = until(&server, |receiver| receiver.delivered == 1).await;
    assert_eq!(list.last_error_of_jobs, "HTTP 429", "it is not tried again");
}

#[tokio::test]
async fn a_receiver_that_says_nothing_holds_up_no_decision_and_gets_it_later() {
    let unavailable = "HTTP/1.1 503 Later\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
    let answers = vec![Answer::Says(unavailable), Answer::Silent, Answer::Says(OK)];
    let mut receiver = Receiver::start(answers).await;
    let (server, _folder) = telling(&format!("http://{}/", receiver.address), "").await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    fails(&server, &agent, "first").await;
    let first = receiver.next().await;
    let failing = until(&server, |receiver| receiver.failed == 1).await;
    assert_eq!(
        (failing.waiting, failing.last_error.as_str()),
        (1, "HTTP 503")
    );
    // While it is silent, jobs begin and end.
    let again = receiver.next().await;
    assert_eq!(
        again.header("muster-id"),
        first.header("muster-id"),
        "the same message"
    );
    fails(&server, &agent, "second").await;
    assert_eq!(listed(&server).await.delivered, 0);
    let (one, other) = (receiver.next().await, receiver.next().await);
    let ids = [one.header("muster-id"), other.header("muster-id")];
    assert!(
        ids.contains(&first.header("muster-id")) && ids[0] != ids[1],
        "{ids:?}"
    );
    until(&server, |receiver| receiver.waiting == 0).await;
}

#[tokio::test]
async fn what_was_not_delivered_is_sent_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = nobody.local_addr().unwrap();
    drop(nobody);
    let path = file(folder.path(), &format!("http://{closed}/"), "");
    let start = || {
        Running::start_with(folder.path(), |command| {
            command.arg("--notify").arg(&path);
        })
    };
    let running = start().await;
    let server = Server::elsewhere(&running.endpoint).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    let cordon = v1::CordonRequest {
        name: "node-a".into(),
        reason: "fan".into(),
        by: String::new(),
    };
    within(server.nodes().cordon(cordon)).await.unwrap();
    let failing = until(&server, |receiver| receiver.failed > 0).await;
    assert_eq!(failing.waiting, 1);
    assert!(
        failing.last_error.starts_with("connect to 127.0.0.1:"),
        "{failing:?}"
    );
    running.signal(Signal::KILL);
    drop((agent, running));

    let mut receiver = Receiver::start(vec![Answer::Says(OK)]).await;
    fs::write(
        folder.path().join("url"),
        format!("http://{}/", receiver.address),
    )
    .unwrap();
    let running = start().await;
    let got = receiver.next().await;
    assert_eq!(
        (&got.body["kind"], &got.body["count"]),
        (&"nodeCordoned".into(), &1.into())
    );
    let text = got.body["text"].as_str().unwrap();
    assert!(
        text.contains("node-a was cordoned by") && text.contains("fan"),
        "{text}"
    );
    let server = Server::elsewhere(&running.endpoint).await;
    until(&server, |receiver| {
        receiver.waiting == 0 && receiver.delivered == 1
    })
    .await;
    drop(running);

    let running = start().await;
    let server = Server::elsewhere(&running.endpoint).await;
    assert_eq!(listed(&server).await.waiting, 0);
    assert!(receiver.got.try_recv().is_err(), "it was delivered already");
}

#[tokio::test]
async fn a_certificate_is_verified() {
    let names = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = names.self_signed(&key).unwrap();
    let der = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut stream = BufReader::new(stream);
            read(&mut stream).await;
            answer(&mut stream, Answer::Says(OK)).await;
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, certificate.pem()).unwrap();
    let trusting = format!("\n    caFile: {}", ca.display());
    let url = format!("https://localhost:{port}/");
    let (server, _folder) = telling(&url, &trusting).await;
    let answer = tested(&server).await;
    assert!(answer.delivered, "{answer:?}");
    let (server, _folder) = telling(&url, "").await;
    let answer = tested(&server).await;
    assert!(
        !answer.delivered && answer.answer.starts_with("TLS: "),
        "{answer:?}"
    );
    let (server, _folder) = telling(&format!("https://127.0.0.1:{port}/"), &trusting).await;
    let answer = tested(&server).await;
    assert!(!answer.delivered, "another name: {answer:?}");
    serving.abort();
}

#[tokio::test]
async fn receivers_are_for_operators() {
    let secure = Secure::start().await;
    let user = secure
        .user("ann", Some((Role::Submitter, &["team-a"])))
        .await;
    let ann = secure.as_whom(&user).await;
    let refused = within(
        ann.notifications()
            .list_receivers(v1::ListReceiversRequest {}),
    )
    .await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    let in_namespace = |namespace: &str| v1::ListOpenRequest {
        namespace: namespace.into(),
    };
    let nothing = within(ann.notifications().list_open(in_namespace("team-a"))).await;
    assert_eq!(nothing.unwrap().into_inner().open, []);
    let refused = within(ann.notifications().list_open(in_namespace("team-b"))).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    let server = Server::start().await;
    let request = v1::TestReceiverRequest {
        name: "hook".into(),
    };
    let refused = within(server.clients.notifications().test_receiver(request)).await;
    assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
}
