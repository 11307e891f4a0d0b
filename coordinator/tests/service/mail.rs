//! Mail reaches people through a server of SMTP that is small, strict, dead for a while or hostile.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use muster_coordinator::{
    notify,
    store::{Store, redb::RedbStore},
};
use muster_core::fleet::Policy;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpListener,
    sync::mpsc,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    agent::FakeAgent,
    notifications::{fails, listed, tested, until},
    server::{Server, within},
};

/// A mail that the server has taken.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) to: Vec<String>,
    pub(crate) text: String,
    /// What proved the sender to it.
    login: Vec<String>,
    secure: bool,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// How the server behaves.
#[derive(Default)]
pub(crate) struct Ways {
    /// To connections, one after the other; then 220.
    pub(crate) greetings: Mutex<VecDeque<&'static str>>,
    /// To a recipient, one after the other; then 250.
    pub(crate) to: Mutex<BTreeMap<&'static str, VecDeque<&'static str>>>,
    /// To the mail itself, one after the other; then 250.
    pub(crate) mails: Mutex<VecDeque<&'static str>>,
    /// What it offers besides, before and after TLS.
    pub(crate) offers: Vec<&'static str>,
    pub(crate) acceptor: Option<TlsAcceptor>,
    /// TLS from the first byte on.
    pub(crate) from_the_start: bool,
    /// What it says behind its answer to STARTTLS, still without TLS.
    pub(crate) ahead: &'static str,
}

pub(crate) struct Postbox {
    pub(crate) address: SocketAddr,
    got: mpsc::Receiver<Got>,
    serving: JoinHandle<()>,
}

impl Drop for Postbox {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}
type Line = BufReader<Box<dyn Stream>>;

impl Postbox {
    pub(crate) async fn start(ways: Ways) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, ways)
    }

    fn on(listener: TcpListener, ways: Ways) -> Self {
        let address = listener.local_addr().unwrap();
        let (out, got) = mpsc::channel(64);
        let serving = tokio::spawn(async move {
            let ways = Arc::new(ways);
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(Box::new(stream), ways.clone(), out.clone()));
            }
        });
        Self {
            address,
            got,
            serving,
        }
    }

    pub(crate) async fn next(&mut self) -> Got {
        within(self.got.recv()).await.unwrap()
    }
}

/// One connection. `None`: it ended.
async fn serve(mut stream: Box<dyn Stream>, ways: Arc<Ways>, out: mpsc::Sender<Got>) -> Option<()> {
    let mut secure = ways.from_the_start;
    if secure {
        stream = Box::new(ways.acceptor.as_ref()?.accept(stream).await.ok()?);
    }
    let mut line = BufReader::new(stream);
    let greeting = ways.greetings.lock().unwrap().pop_front();
    say(&mut line, greeting.unwrap_or("220 test ready")).await?;
    let mut got = Got {
        to: Vec::new(),
        text: String::new(),
        login: Vec::new(),
        secure,
    };
    loop {
        let command = hear(&mut line).await?;
        let answer = match command.split([' ', ':']).next()? {
            "EHLO" => {
                let starts = ways.acceptor.is_some() && !secure;
                let more = starts.then_some("STARTTLS");
                let offers = ways.offers.iter().copied().chain(more);
                let lines: String = offers.map(|offer| format!("250-{offer}\r\n")).collect();
                format!("250-test\r\n{lines}250 8BITMIME")
            }
            "STARTTLS" => {
                say(&mut line, &format!("220 go{}", ways.ahead)).await?;
                let stream = ways.acceptor.as_ref()?.accept(line.into_inner()).await;
                line = BufReader::new(Box::new(stream.ok()?));
                (secure, got.secure) = (true, true);
                continue;
            }
            "AUTH" if command == "AUTH LOGIN" => {
                for _ in 0..2 {
                    say(&mut line, "334 ?").await?;
                    got.login.push(hear(&mut line).await?);
                }
                "235 ok".to_owned()
            }
            "AUTH" if command.ends_with("AGFubgBodW50ZXIy") => {
                got.login.push(command);
                "235 ok".to_owned()
            }
            "AUTH" => format!("535 5.7.8 not you: {command}"),
            "MAIL" => "250 ok".to_owned(),
            "RCPT" => {
                let to = command.strip_prefix("RCPT TO:<")?.strip_suffix('>')?;
                let answer = { ways.to.lock().unwrap() }
                    .get_mut(to)
                    .and_then(VecDeque::pop_front);
                if answer.is_none() {
                    got.to.push(to.to_owned());
                }
                answer.unwrap_or("250 ok").to_owned()
            }
            "DATA" => {
                say(&mut line, "354 go on").await?;
                got.text = data(&mut line).await?;
                let answer = ways.mails.lock().unwrap().pop_front();
                out.send(got).await.ok()?;
                say(&mut line, answer.unwrap_or("250 2.0.0 queued as 7")).await?;
                return None;
            }
            _ => return None,
        };
        say(&mut line, &answer).await?;
    }
}

async fn say(line: &mut Line, text: &str) -> Option<()> {
    line.write_all(format!("{text}\r\n").as_bytes())
        .await
        .ok()?;
    line.flush().await.ok()
}

async fn hear(line: &mut Line) -> Option<String> {
    let mut text = String::new();
    let read = line.read_line(&mut text).await.ok()?;
    (read > 0).then(|| text.trim_end().to_owned())
}

/// The text up to the dot alone.
async fn data(line: &mut Line) -> Option<String> {
    let mut text = String::new();
    loop {
        let next = hear(line).await?;
        if next == "." {
            return Some(text);
        }
        text.push_str(next.strip_prefix('.').unwrap_or(&next));
        text.push('\n');
    }
}

/// A coordinator that mails two people through this server.
pub(crate) async fn mailing(url: &str, more: &str) -> (Server, TempDir) {
    let (state, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut settings = Server::settings(&state, Policy::default());
    settings.notify = Some(notify::read(&file(folder.path(), url, more)).unwrap());
    let path = state.path().to_owned();
    let open = move || RedbStore::open(&path).map(|store| Box::new(store) as Box<dyn Store>);
    let server = Box::pin(Server::start_on(state, settings, open)).await;
    (server, folder)
}

fn file(folder: &Path, url: &str, more: &str) -> std::path::PathBuf {
    fs::write(folder.join("password"), "hunter2\n").unwrap();
    let path = folder.join("notify.yaml");
    let text = format!(
        "
cluster: lab
gatherFor: 0s
receivers:
- name: hook
  mail:
    server: {url}
    from: muster@example.org
    to: [ann@example.org, bob@example.org]
{more}
rules:
- on: [jobFailed]
  receivers: [hook]
"
    );
    let text = text.replace("PASSWORD", &folder.join("password").display().to_string());
    fs::write(&path, text).unwrap();
    path
}

pub(crate) const PLAIN: &str = "    startTls: off";

/// A server's certificate for localhost, and who vouches for it.
fn certified(folder: &Path) -> (TlsAcceptor, String) {
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
    let ca = folder.join("ca.pem");
    fs::write(&ca, certificate.pem()).unwrap();
    let trusting = format!(
        "    caFile: {}\n    user: ann\n    passwordFile: PASSWORD",
        ca.display()
    );
    (TlsAcceptor::from(Arc::new(config)), trusting)
}

#[tokio::test]
async fn a_job_that_fails_is_mailed_once_to_all() {
    let mut postbox = Postbox::start(Ways::default()).await;
    let (server, _folder) = mailing(&format!("smtp://{}", postbox.address), PLAIN).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    fails(&server, &agent, "digits").await;
    let got = postbox.next().await;
    assert_eq!(got.to, ["ann@example.org", "bob@example.org"]);
    let subject = got.header("Subject").unwrap();
    assert!(
        subject.starts_with("[lab] default/digits: "),
        "{}",
        got.text
    );
    assert_eq!(got.header("Auto-Submitted"), Some("auto-generated"));
    let id = got.header("Message-ID").unwrap();
    assert!(
        id.starts_with("<muster.") && id.ends_with("@example.org>"),
        "{id}"
    );
    assert!(
        got.text
            .contains("\n  culprit: rank 0 on node-a (WorkerFailed)\n"),
        "{}",
        got.text
    );
    assert!(
        !got.text.contains("train.py"),
        "no command lines: {}",
        got.text
    );

    let list = until(&server, |receiver| receiver.waiting == 0).await;
    assert_eq!((list.delivered, list.failed), (1, 0));
    assert_eq!(list.form, "mail");
    let shown = format!(
        "smtp://{} to ann@example.org, bob@example.org",
        postbox.address
    );
    assert_eq!(list.address, shown);
    let answer = tested(&server).await;
    assert_eq!(
        (answer.delivered, answer.answer.as_str()),
        (true, "SMTP 250: 2.0.0 queued as 7")
    );
    let got = postbox.next().await;
    assert!(
        got.text
            .contains("This is a test of Muster's notifications"),
        "{}",
        got.text
    );
    assert!(postbox.got.try_recv().is_err(), "each came once");
}

#[tokio::test]
async fn a_server_that_is_dead_for_a_while_gets_the_same_mail_later() {
    // Nobody listens; then it is too busy to greet; then it cannot store the mail.
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let (server, _folder) = mailing(&format!("smtp://{address}"), PLAIN).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    fails(&server, &agent, "digits").await;
    let failing = until(&server, |receiver| receiver.failed == 1).await;
    assert!(
        failing.last_error.starts_with("connect to 127.0.0.1:"),
        "{failing:?}"
    );
    let ways = Ways {
        mails: Mutex::new(["451 4.3.0 disk full"].into()),
        ..Ways::default()
    };
    let mut postbox = Postbox::on(TcpListener::bind(address).await.unwrap(), ways);
    let first = postbox.next().await;
    let failing = until(&server, |receiver| receiver.failed == 2).await;
    assert_eq!(
        failing.last_error,
        "SMTP 451: 4.3.0 disk full (to the mail)"
    );
    let again = postbox.next().await;
    assert_eq!(
        again.header("Message-ID"),
        first.header("Message-ID"),
        "the same mail"
    );
    let list = until(&server, |receiver| receiver.waiting == 0).await;
    assert_eq!((list.delivered, list.last_error.as_str()), (1, ""));
}

#[tokio::test]
async fn who_was_reached_gets_no_second_mail_and_who_does_not_exist_holds_up_nobody() {
    let ways = Ways {
        to: Mutex::new([("bob@example.org", ["450 4.2.0 greylisted"].into())].into()),
        ..Ways::default()
    };
    let mut postbox = Postbox::start(ways).await;
    let (server, _folder) = mailing(&format!("smtp://{}", postbox.address), PLAIN).await;
    let agent = FakeAgent::start(&server, "node-a", &[], true).await;
    fails(&server, &agent, "digits").await;
    assert_eq!(postbox.next().await.to, ["ann@example.org"]);
    assert_eq!(
        postbox.next().await.to,
        ["bob@example.org"],
        "the other one has it"
    );
    until(&server, |receiver| receiver.waiting == 0).await;

    let gone = || ["550 5.1.1 no such user"; 2].into();
    let to = [
        ("bob@example.org", gone()),
        ("ann@example.org", VecDeque::new()),
    ];
    let ways = Ways {
        to: Mutex::new(to.into()),
        ..Ways::default()
    };
    let postbox = Postbox::start(ways).await;
    let (server, _folder) = mailing(&format!("smtp://{}", postbox.address), PLAIN).await;
    let answer = tested(&server).await;
    assert_eq!(
        (answer.delivered, answer.answer.as_str()),
        (
            true,
            "SMTP 250: 2.0.0 queued as 7; not for bob@example.org: SMTP 550: 5.1.1 no such user"
        )
    );
    let ways = Ways {
        to: Mutex::new([("bob@example.org", gone()), ("ann@example.org", gone())].into()),
        ..Ways::default()
    };
    let postbox = Postbox::start(ways).await;
    let (server, _folder) = mailing(&format!("smtp://{}", postbox.address), PLAIN).await;
    let answer = tested(&server).await;
    assert!(
        !answer.delivered
            && answer
                .answer
                .contains("550: 5.1.1 no such user, and 1 more"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_password_goes_over_tls_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (acceptor, trusting) = certified(folder.path());
    let with_tls = |offers: &'static str, from_the_start| Ways {
        acceptor: Some(acceptor.clone()),
        offers: vec![offers],
        from_the_start,
        ..Ways::default()
    };
    for (scheme, from_the_start) in [("smtp", false), ("smtps", true)] {
        for (offers, login) in [
            ("AUTH LOGIN PLAIN", &["AUTH PLAIN AGFubgBodW50ZXIy"][..]),
            ("AUTH LOGIN", &["YW5u", "aHVudGVyMg=="]),
        ] {
            let mut postbox = Postbox::start(with_tls(offers, from_the_start)).await;
            let url = format!("{scheme}://localhost:{}", postbox.address.port());
            let (server, _folder) = mailing(&url, &trusting).await;
            let answer = tested(&server).await;
            assert!(answer.delivered, "{scheme}, {offers}: {answer:?}");
            let got = postbox.next().await;
            assert!(got.secure);
            assert_eq!(got.login, login);
        }
    }
    // The authority is not known, or the name is another one.
    let postbox = Postbox::start(with_tls("AUTH PLAIN", false)).await;
    let port = postbox.address.port();
    let strangers = "    user: ann\n    passwordFile: PASSWORD";
    for (url, more) in [
        (format!("smtp://localhost:{port}"), strangers),
        (format!("smtp://127.0.0.1:{port}"), trusting.as_str()),
    ] {
        let (server, _folder) = mailing(&url, more).await;
        let answer = tested(&server).await.answer;
        assert!(answer.starts_with("TLS: "), "{answer}");
    }
    let wrong = trusting.replace("user: ann", "user: eve");
    let (server, _folder) = mailing(&format!("smtp://localhost:{port}"), &wrong).await;
    let answer = tested(&server).await.answer;
    assert_eq!(
        answer, "SMTP 535: the server does not accept the user and the password",
        "it does not repeat what the server repeats"
    );
    assert_eq!(listed(&server).await.last_error, answer);
}

#[tokio::test]
async fn a_server_without_tls_and_one_that_cheats_get_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (acceptor, trusting) = certified(folder.path());
    let opportunistic = format!("{trusting}\n    startTls: opportunistic");
    let bare = || Ways::default();
    let cheats = Ways {
        acceptor: Some(acceptor),
        ahead: "\r\n250-test\r\n250 AUTH PLAIN",
        ..Ways::default()
    };
    let says = |greeting| Ways {
        greetings: Mutex::new([greeting].into()),
        ..Ways::default()
    };
    let long = Box::leak("220-".repeat(5_000).into_boxed_str());
    for (ways, more, must) in [
        (
            bare(),
            "",
            "offers no STARTTLS, and without TLS nothing is sent",
        ),
        (
            bare(),
            opportunistic.as_str(),
            "a password is not sent without TLS",
        ),
        (cheats, trusting.as_str(), "said more than STARTTLS allows"),
        (
            says("554 5.7.1 go\u{1b}[2J away"),
            PLAIN,
            "SMTP 554: 5.7.1 go[2J away (to the connection)",
        ),
        (
            says("HTTP/1.1 400 Bad Request"),
            PLAIN,
            "this is no answer of SMTP: HTTP/1.1 400",
        ),
        (says(long), PLAIN, "the server's answer is too long"),
    ] {
        let mut postbox = Postbox::start(ways).await;
        let url = format!("smtp://localhost:{}", postbox.address.port());
        let (server, _folder) = mailing(&url, more).await;
        let answer = tested(&server).await;
        assert!(
            !answer.delivered && answer.answer.contains(must),
            "{must}: {answer:?}"
        );
        assert!(answer.answer.len() < 400, "{answer:?}");
        assert!(postbox.got.try_recv().is_err(), "{must}");
    }
    // Without a password, who wants TLS where it is offered takes what there is.
    let mut postbox = Postbox::start(bare()).await;
    let url = format!("smtp://localhost:{}", postbox.address.port());
    let (server, _folder) = mailing(&url, "    startTls: opportunistic").await;
    assert!(tested(&server).await.delivered);
    assert!(!postbox.next().await.secure);
}
