//! The coordinator with TLS: who gets a certificate, and what each identity may do with it.

use std::{collections::BTreeMap, path::Path, time::Duration};

use muster_coordinator::{
    serve::{Coordinator, ServeError, Settings},
    store::{Store, redb::RedbStore},
    trust::{self, Grant, Role, Token, Trust},
};
use muster_core::fleet::Policy;
use muster_proto::v1::{self, agent_message::Message as FromAgent};
use muster_rpc::{
    Address, Bearer, Channel, Clients,
    channel::Tokens,
    credentials::Credentials,
    dial,
    dial::Options,
    enroll::{self, EnrollError},
    identity::{Kind, Principal},
    tls::{ClientTls, Trust as Trusted},
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::{
    agent::{hello, say},
    server::{Server, within},
};

/// A coordinator with a certificate authority, and the admin's ways on its machine.
pub(crate) struct Secure {
    state: TempDir,
    pub(crate) address: Address,
    pin: Trusted,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), ServeError>>,
}

/// A coordinator that has ended.
pub(crate) struct Stopped {
    state: TempDir,
    pin: Trusted,
}

impl Stopped {
    pub(crate) async fn start_with(self, change: impl FnOnce(&mut Settings)) -> Secure {
        let Self { state, pin } = self;
        let mut settings = Settings {
            trust: Trust::open(state.path()).unwrap(),
            ..Server::settings(&state, Policy::default())
        };
        change(&mut settings);
        let path = state.path().to_owned();
        let open = move || RedbStore::open(&path).map(|store| Box::new(store) as Box<dyn Store>);
        let coordinator = Box::pin(Coordinator::start(settings, open)).await.unwrap();
        let address = format!("https://{}", coordinator.address).parse().unwrap();
        let shutdown = coordinator.shutdown();
        Secure {
            state,
            address,
            pin,
            shutdown,
            running: tokio::spawn(coordinator.run()),
        }
    }
}

impl Secure {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Settings)) -> Self {
        let state = tempfile::tempdir().unwrap();
        let (authority, new) = trust::init(state.path(), None, &["127.0.0.1".into()]).unwrap();
        assert!(new);
        let pin = Trusted::Pinned(authority.pin());
        Box::pin(Stopped { state, pin }.start_with(change)).await
    }

    /// Ends the coordinator, and keeps what it has stored.
    pub(crate) async fn stop(self) -> Stopped {
        self.shutdown.cancel();
        within(self.running).await.unwrap().unwrap();
        let (state, pin) = (self.state, self.pin);
        Stopped { state, pin }
    }

    pub(crate) fn path(&self) -> &Path {
        self.state.path()
    }

    pub(crate) fn token(&self, kind: Kind, name: Option<&str>, uses: u32) -> String {
        let token = Token {
            kind,
            name: name.map(str::to_owned),
            uses,
            expires_us: trust::now_us() + 60_000_000,
        };
        trust::create_token(self.path(), token).unwrap()
    }

    pub(crate) async fn join(&self, token: &str, name: &str) -> Result<Credentials, EnrollError> {
        within(enroll::join(&self.address, &self.pin, token, name)).await
    }

    /// The credentials of this user, with this role.
    pub(crate) async fn user(&self, name: &str, role: Option<(Role, &[&str])>) -> Credentials {
        if let Some((role, namespaces)) = role {
            let grant = Grant {
                role,
                all_namespaces: namespaces.is_empty(),
                namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            };
            trust::grants(self.path())
                .unwrap()
                .set(name, grant)
                .unwrap();
        }
        let token = self.token(Kind::User, Some(name), 1);
        self.join(&token, "").await.unwrap()
    }

    pub(crate) async fn host(&self, name: &str) -> Credentials {
        let token = self.token(Kind::Host, Some(name), 1);
        self.join(&token, "").await.unwrap()
    }

    async fn clients(&self, tls: ClientTls) -> Clients {
        let options = Options {
            tls: Some(tls),
            ..Options::default()
        };
        within(dial(&self.address, options)).await.unwrap()
    }

    pub(crate) async fn as_whom(&self, own: &Credentials) -> Clients {
        self.clients(own.tls().unwrap()).await
    }

    /// Whoever shows this token with every call.
    pub(crate) async fn with_token(&self, token: &str) -> Clients {
        let options = Options {
            tls: Some(ClientTls::new(&self.pin, None).unwrap()),
            tokens: Some(Tokens::one(Bearer::parse(token).unwrap())),
            ..Options::default()
        };
        within(dial(&self.address, options)).await.unwrap()
    }

    pub(crate) async fn anonymous(&self) -> Clients {
        self.clients(ClientTls::new(&self.pin, None).unwrap()).await
    }
}

fn message(error: &EnrollError) -> String {
    error.to_string()
}

#[tokio::test]
async fn a_token_gets_one_certificate_and_that_renews_itself() {
    let secure = Secure::start().await;
    let token = secure.token(Kind::Host, None, 1);
    let wrong = format!("{}0", &token[..token.len() - 1]);
    let wrong = if wrong == token {
        format!("{}1", &token[..token.len() - 1])
    } else {
        wrong
    };
    let refused = secure.join(&wrong, "n1").await.unwrap_err();
    assert!(
        message(&refused).starts_with("the token is not known"),
        "{refused}"
    );
    let nameless = secure.join(&token, "").await.unwrap_err();
    assert!(message(&nameless).contains("any name"), "{nameless}");
    let n1 = secure.join(&token, "n1").await.unwrap();
    assert_eq!(n1.principal, "host/n1");
    let used_up = secure.join(&token, "n2").await.unwrap_err();
    assert!(
        message(&used_up).starts_with("the token is not known"),
        "{used_up}"
    );

    let again = within(enroll::renew(&n1, &secure.address)).await.unwrap();
    assert_eq!(again.principal, "host/n1");
    assert_ne!((&again.certificate, &again.key), (&n1.certificate, &n1.key));
    let who = secure.as_whom(&again).await;
    let who = within(who.access().who_am_i(v1::WhoAmIRequest {})).await;
    let who = who.unwrap().into_inner();
    assert_eq!(
        (who.identity.as_str(), who.role.as_str()),
        ("host/n1", "host")
    );
}

#[tokio::test]
async fn a_name_that_was_given_out_is_given_again_only_by_a_token_for_it() {
    let secure = Secure::start().await;
    let any = secure.token(Kind::Host, None, 3);
    secure.join(&any, "n1").await.unwrap();
    let taken = secure.join(&any, "n1").await.unwrap_err();
    assert!(
        message(&taken).contains("token create --host n1"),
        "{taken}"
    );
    let bad = secure.join(&any, "../n1").await.unwrap_err();
    assert!(message(&bad).contains("cannot be a node's name"), "{bad}");
    secure.host("n1").await;
    let anybody = secure.token(Kind::User, None, 1);
    let anybody = secure.join(&anybody, "ann").await.unwrap_err();
    assert!(message(&anybody).contains("not known"), "{anybody}");
    let other = secure.token(Kind::Host, Some("n2"), 1);
    let other = secure.join(&other, "n3").await.unwrap_err();
    assert!(message(&other).contains("for n2, not for n3"), "{other}");
}

#[tokio::test]
async fn a_coordinator_of_another_authority_gets_no_token() {
    let (secure, other) = (Secure::start().await, Secure::start().await);
    let token = secure.token(Kind::Host, None, 1);
    let error = within(enroll::join(&secure.address, &other.pin, &token, "n1")).await;
    let EnrollError::Unreachable(_, error) = error.unwrap_err() else {
        panic!("it was talked to");
    };
    let why = error.explain().unwrap();
    assert!(
        why.contains("not of the authority that is trusted here"),
        "{why}"
    );
    secure.join(&token, "n1").await.unwrap();
}

/// What the identities of the matrix may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum May {
    /// Nothing but ask who they are, and join.
    Ask,
    /// That, and renew.
    Renew,
    View,
    Submit,
    Operate,
}

/// Every method, of our package if no other is named, and the least that its caller must be
/// allowed. `None`: only hosts. Written down apart from the table that it checks.
pub(crate) const METHODS: [(&str, Option<May>); 37] = [
    ("AccessService/CanI", Some(May::Ask)),
    ("AccessService/Join", Some(May::Ask)),
    ("AccessService/WhoAmI", Some(May::Ask)),
    ("AccessService/Renew", Some(May::Renew)),
    ("AgentService/Session", None),
    ("EventService/List", Some(May::View)),
    ("EventService/Watch", Some(May::View)),
    ("HistoryService/List", Some(May::View)),
    ("JobService/Explain", Some(May::View)),
    ("JobService/Get", Some(May::View)),
    ("JobService/List", Some(May::View)),
    ("JobService/Wait", Some(May::View)),
    ("JobService/Watch", Some(May::View)),
    ("NodeService/Get", Some(May::View)),
    ("NodeService/List", Some(May::View)),
    ("NodeService/Watch", Some(May::View)),
    ("QueueService/List", Some(May::View)),
    ("JobService/Cancel", Some(May::Submit)),
    ("JobService/Delete", Some(May::Submit)),
    ("JobService/Environment", Some(May::Submit)),
    ("JobService/Logs", Some(May::Submit)),
    ("JobService/Scale", Some(May::Submit)),
    ("JobService/Signal", Some(May::Submit)),
    ("JobService/Stacks", Some(May::Submit)),
    ("JobService/Submit", Some(May::Submit)),
    ("NotificationService/ListOpen", Some(May::Submit)),
    ("AuditService/List", Some(May::Operate)),
    ("NodeService/Cordon", Some(May::Operate)),
    ("NodeService/Delete", Some(May::Operate)),
    ("NodeService/Uncordon", Some(May::Operate)),
    ("NotificationService/ListReceivers", Some(May::Operate)),
    ("NotificationService/TestReceiver", Some(May::Operate)),
    ("JobService/Nothing", None),
    ("grpc.health.v1.Health/Check", Some(May::Ask)),
    (
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        Some(May::View),
    ),
    (
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        Some(May::View),
    ),
    ("grpc.reflection.v1.ServerReflection/Nothing", None),
];

/// Calls a method with an empty message, and returns what comes first.
pub(crate) async fn call(channel: Channel, method: &str) -> Result<(), Status> {
    call_with(channel, method, ()).await
}

pub(crate) async fn call_with<M: prost::Message + Default + 'static>(
    channel: Channel,
    method: &str,
    message: M,
) -> Result<(), Status> {
    let mut grpc = Grpc::new(channel);
    within(grpc.ready()).await.unwrap();
    let package = if method.starts_with("grpc.") {
        ""
    } else {
        "muster.v1."
    };
    let path: PathAndQuery = format!("/{package}{method}").parse().unwrap();
    let codec = ProstCodec::<M, ()>::default();
    let mut answer = within(grpc.server_streaming(Request::new(message), path, codec))
        .await?
        .into_inner();
    // A watch may have nothing to say for as long as it lasts. Whether a call is refused is known before its answer begins.
    match tokio::time::timeout(Duration::from_millis(300), answer.next()).await {
        Ok(Some(Err(status))) => Err(status),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn every_method_asks_every_identity_for_its_right() {
    let secure = Secure::start().await;
    let mut identities = BTreeMap::new();
    identities.insert("anonymous", (secure.anonymous().await, May::Ask));
    let nobody = secure.user("nobody", None).await;
    let denied = secure.user("denied", Some((Role::Admin, &[]))).await;
    let viewer = secure.user("viewer", Some((Role::Viewer, &[]))).await;
    let submitter = secure.user("submitter", Some((Role::Submitter, &[]))).await;
    let elsewhere = Some((Role::Submitter, &["team-a"][..]));
    let elsewhere = secure.user("elsewhere", elsewhere).await;
    let operator = secure.user("operator", Some((Role::Operator, &[]))).await;
    let admin = secure.user("admin", Some((Role::Admin, &[]))).await;
    let host = secure.host("n1").await;
    let users = [
        ("nobody", nobody, May::Renew),
        ("viewer", viewer, May::View),
        ("submitter", submitter, May::Submit),
        ("operator", operator, May::Operate),
        ("admin", admin, May::Operate),
        ("host", host, May::Renew),
        ("elsewhere", elsewhere, May::Submit),
    ];
    for (name, own, may) in &users {
        identities.insert(name, (secure.as_whom(own).await, *may));
    }
    let grants = trust::grants(secure.path()).unwrap();
    let principal = Principal::new(Kind::User, "denied").unwrap();
    grants.deny(&principal, true).unwrap();
    let denied = secure.as_whom(&denied).await;
    within(async {
        // The running coordinator looks at the file once a second.
        while denied.access().who_am_i(v1::WhoAmIRequest {}).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;

    let mut wrong = Vec::new();
    for (method, least) in METHODS {
        let answer = call(denied.channel(), method).await;
        let code = answer.as_ref().err().map(Status::code);
        if code != Some(Code::PermissionDenied) {
            wrong.push(format!("denied calls {method}: {answer:?}"));
        }
        for (name, (clients, may)) in &identities {
            let answer = call(clients.channel(), method).await;
            let code = answer.as_ref().err().map(Status::code);
            // An empty Join shows no token.
            let refused = method != "AccessService/Join"
                && matches!(code, Some(Code::PermissionDenied | Code::Unauthenticated));
            let expected = match least {
                None => *name == "host" && method == "AgentService/Session",
                Some(least) => *may >= least,
            };
            if refused == expected {
                wrong.push(format!("{name} calls {method}: {answer:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_role_ends_at_its_namespaces() {
    let secure = Secure::start().await;
    let ann = secure
        .user("ann", Some((Role::Submitter, &["team-a"])))
        .await;
    let bob = secure.user("bob", Some((Role::Viewer, &[]))).await;
    let (ann, bob) = (secure.as_whom(&ann).await, secure.as_whom(&bob).await);
    let reference = |namespace: &str| {
        Some(v1::JobRef {
            namespace: namespace.into(),
            name: "job".into(),
        })
    };
    let spec = v1::JobSpec {
        env: vec![v1::EnvVar {
            file: String::new(),
            name: "SECRET".into(),
            value: "42".into(),
        }],
        ..crate::server::spec(1)
    };
    let submit = |namespace: &str| v1::SubmitRequest {
        r#ref: reference(namespace),
        spec: Some(spec.clone()),
        ..v1::SubmitRequest::default()
    };
    let refused = within(ann.jobs().submit(submit("team-b")))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(
        refused
            .message()
            .contains("no role in namespace \"team-b\"")
    );
    within(ann.jobs().submit(submit("team-a"))).await.unwrap();

    // A viewer sees the job, but not the values of its environment.
    let get = v1::GetJobRequest {
        r#ref: reference("team-a"),
    };
    let value = |job: v1::GetJobResponse| job.job.unwrap().spec.unwrap().env[0].value.clone();
    let seen = within(ann.jobs().get(get.clone())).await.unwrap();
    assert_eq!(value(seen.into_inner()), "42");
    let seen = within(bob.jobs().get(get.clone())).await.unwrap();
    assert_eq!(value(seen.into_inner()), "<hidden>");

    // Ann sees nothing of the jobs of others, not even that they are there.
    let carol = secure
        .user("carol", Some((Role::Submitter, &["team-b"])))
        .await;
    let carol = secure.as_whom(&carol).await;
    let listed = within(carol.jobs().list(v1::ListJobsRequest::default())).await;
    assert!(listed.unwrap().into_inner().jobs.is_empty());
    let events = within(carol.events().list(v1::ListEventsRequest::default())).await;
    assert!(events.unwrap().into_inner().events.is_empty());
    for refused in [
        within(carol.jobs().get(get)).await.map(drop),
        within(carol.jobs().cancel(v1::CancelRequest {
            r#ref: reference("team-a"),
        }))
        .await
        .map(drop),
        within(carol.jobs().list(v1::ListJobsRequest {
            namespace: "team-a".into(),
            ..v1::ListJobsRequest::default()
        }))
        .await
        .map(drop),
    ] {
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
    let events = within(ann.events().list(v1::ListEventsRequest::default())).await;
    assert!(!events.unwrap().into_inner().events.is_empty());
}

#[tokio::test]
async fn a_host_speaks_for_its_own_node_only_and_not_after_it_is_denied() {
    let secure = Secure::start().await;
    let n1 = secure.host("n1").await;
    let n1 = secure.as_whom(&n1).await;
    let open = async |node: &str| {
        let (up, messages) = tokio::sync::mpsc::channel(8);
        up.send(say(FromAgent::Hello(hello(node)))).await.unwrap();
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
        let down = within(n1.agents().session(messages)).await.unwrap();
        (up, down.into_inner())
    };
    let (_up, mut down) = open("n2").await;
    let refused = within(down.message()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert!(
        refused
            .message()
            .contains("is for node n1, and the agent says that it is n2")
    );

    let (up, mut down) = open("n1").await;
    assert!(within(down.message()).await.unwrap().is_some(), "welcome");
    let principal = Principal::new(Kind::Host, "n1").unwrap();
    let grants = trust::grants(secure.path()).unwrap();
    grants.deny(&principal, true).unwrap();
    // It goes on with messages that are no heartbeats, for as long as they are taken.
    let runs = say(FromAgent::Runs(v1::RunReports::default()));
    let ended = within(async {
        loop {
            tokio::select! {
                answer = down.message() => match answer {
                    Err(status) => return status,
                    Ok(answer) => assert!(answer.is_some(), "it ends with a reason"),
                },
                Ok(()) = up.send(runs.clone()) => {}
            }
        }
    })
    .await;
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
    assert!(ended.message().contains("was denied by an operator"));
}

/// Credentials for host n1 with the authority in this folder, made by hand: these ended a minute
/// ago.
fn expired(secure: &Secure) -> Credentials {
    let folder = secure.path().join("trust");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let mut named = rcgen::CertificateParams::default();
    named.distinguished_name = rcgen::DistinguishedName::new();
    let name = "Muster CA of muster";
    named
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let authority = rcgen::KeyPair::from_pem(&read("authority.key")).unwrap();
    let issuer = rcgen::Issuer::new(named, authority);
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    let uri = "spiffe://muster/host/n1".try_into().unwrap();
    params.subject_alt_names = vec![rcgen::SanType::URI(uri)];
    let ended_us = trust::now_us() - 60_000_000;
    let date = |us: u64| time::OffsetDateTime::from_unix_timestamp((us / 1_000_000) as i64);
    params.not_before = date(ended_us - 3_600_000_000).unwrap();
    params.not_after = date(ended_us).unwrap();
    Credentials {
        server: secure.address.to_string(),
        principal: "host/n1".into(),
        certificate: params.signed_by(&key, &issuer).unwrap().pem(),
        key: key.serialize_pem(),
        authorities: read("authority.pem"),
        not_before_us: ended_us - 3_600_000_000,
        not_after_us: ended_us,
    }
}

#[tokio::test]
async fn a_certificate_that_has_expired_or_is_of_another_cluster_is_refused_with_its_reason() {
    let (secure, other) = (Secure::start().await, Secure::start().await);
    let stranger = Credentials {
        authorities: secure.host("n9").await.authorities,
        ..other.host("n1").await
    };
    for (own, says) in [
        (expired(&secure), "the certificate of this side has expired"),
        (stranger, "it does not accept the certificate of this side"),
    ] {
        let options = Options {
            tls: Some(own.tls().unwrap()),
            ..Options::default()
        };
        // With TLS 1.3 the caller's handshake is over before the other end has looked at its
        // certificate. So the refusal may come with the first call.
        let why = match within(dial(&secure.address, options)).await {
            Err(error) => error.explain(),
            Ok(clients) => {
                let status = within(clients.access().who_am_i(v1::WhoAmIRequest {})).await;
                muster_rpc::tls::explain(&status.unwrap_err())
            }
        };
        assert!(why.is_some_and(|why| why.starts_with(says)), "{why:?}");
    }
}

#[tokio::test]
async fn callers_that_never_finish_a_handshake_hold_up_nobody() {
    use tokio::io::AsyncWriteExt;

    let secure = Secure::start().await;
    let n1 = secure.host("n1").await;
    let address = secure.address.to_string().replace("https://", "");
    // More than one address may have. The oldest of them make room.
    let mut silent = Vec::new();
    for number in 0..1_200 {
        let mut stream = within(tokio::net::TcpStream::connect(&address))
            .await
            .unwrap();
        if number % 2 == 0 {
            // The head of a ClientHello, and never the rest of it.
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        }
        silent.push(stream);
    }
    let clients = secure.as_whom(&n1).await;
    let who = within(clients.access().who_am_i(v1::WhoAmIRequest {})).await;
    assert_eq!(who.unwrap().into_inner().identity, "host/n1");
    drop(silent);
}
