//! Agents that show the token of their pod instead of a certificate.

use std::{fs, time::Duration};

use muster_coordinator::{kubernetes::Settings, trust};
use muster_proto::v1::{self, agent_message::Message as FromAgent};
use muster_rpc::{
    Bearer, Clients,
    channel::Tokens,
    dial,
    dial::Options,
    identity::{Kind, Principal},
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::{
    access::{METHODS, May, Secure, call},
    agent::{hello, say},
    cluster::{Cluster, Fault, Holder, Minted},
    process::{Running, program, refused},
    server::{Server, within},
};

/// A coordinator that takes tokens of this cluster.
pub(crate) async fn beside(cluster: &Cluster) -> Secure {
    changed(cluster, |_| {}).await
}

/// It asks about every token again with every call.
async fn asks_always(cluster: &Cluster) -> Secure {
    changed(cluster, |settings| {
        settings.tokens.as_mut().unwrap().again_after = Duration::ZERO;
    })
    .await
}

pub(crate) async fn changed(cluster: &Cluster, change: impl FnOnce(&mut Settings)) -> Secure {
    let mut asked = cluster.tokens();
    change(&mut asked);
    Secure::start_with(|settings| settings.kubernetes = Some(asked)).await
}

pub(crate) fn mint(cluster: &Cluster, holder: Holder) -> String {
    cluster.change(|state| state.mint(Minted::ours(holder)))
}

pub(crate) async fn whoami(clients: &Clients) -> Result<String, Status> {
    let answer = within(clients.access().who_am_i(v1::WhoAmIRequest {})).await?;
    Ok(answer.into_inner().identity)
}

/// Who the holder of this token is, on a connection of its own.
async fn who(secure: &Secure, token: &str) -> Result<String, Status> {
    whoami(&secure.with_token(token).await).await
}

type Session = (
    mpsc::Sender<v1::AgentMessage>,
    Streaming<v1::CoordinatorMessage>,
);

/// Opens the session of this node.
async fn open(clients: &Clients, node: &str) -> Result<Session, Status> {
    let (up, messages) = mpsc::channel(8);
    up.send(say(FromAgent::Hello(hello(node)))).await.unwrap();
    let mut agents = clients.agents();
    let session = agents.session(ReceiverStream::new(messages));
    Ok((up, within(session).await?.into_inner()))
}

async fn refused_session(clients: &Clients, node: &str) -> Status {
    match open(clients, node).await {
        Err(status) => status,
        Ok((_up, mut down)) => within(down.message()).await.unwrap_err(),
    }
}

fn asked(cluster: &Cluster, what: &str) -> u32 {
    cluster.change(|state| state.asked.get(what).copied().unwrap_or_default())
}

#[tokio::test]
async fn a_pods_token_is_the_agent_of_its_node_and_of_no_other() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let token = mint(&cluster, Holder::agent("n1"));
    let clients = secure.with_token(&token).await;
    assert_eq!(whoami(&clients).await.unwrap(), "host/n1");
    let (_up, mut down) = open(&clients, "n1").await.unwrap();
    assert!(within(down.message()).await.unwrap().is_some(), "welcome");

    let other = refused_session(&clients, "n2").await;
    assert_eq!(other.code(), Code::PermissionDenied, "{other}");
    let says = "the token is of a pod on node n1, and the agent says that it is n2";
    assert!(other.message().starts_with(says), "{other}");
    // It is no user, and it has no certificate to renew.
    let list = v1::ListJobsRequest::default();
    let jobs = within(clients.jobs().list(list)).await.unwrap_err();
    assert_eq!(jobs.code(), Code::PermissionDenied, "{jobs}");
    let renew = v1::RenewRequest::default();
    let renew = within(clients.access().renew(renew)).await.unwrap_err();
    assert_eq!(renew.code(), Code::PermissionDenied, "{renew}");

    // A host that an operator denies is denied however it proves itself.
    let principal = Principal::new(Kind::Host, "n1").unwrap();
    let grants = trust::grants(secure.path()).unwrap();
    grants.deny(&principal, true).unwrap();
    let denied = within(async {
        loop {
            match whoami(&clients).await {
                Err(status) => return status,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert!(
        denied.message().contains("was denied by an operator"),
        "{denied}"
    );
}

#[tokio::test]
async fn whatever_is_wrong_with_a_token_it_is_refused_with_its_reason() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let mint = |change: &dyn Fn(&mut Minted)| {
        let mut minted = Minted::ours(Holder::agent("n1"));
        change(&mut minted);
        cluster.change(|state| state.mint(minted))
    };
    let revoked = mint(&|_| {});
    cluster.change(|state| state.revoke(&revoked));
    let cases = [
        (
            mint(&|minted| minted.expires_us = trust::now_us() - 1_000_000),
            Code::Unauthenticated,
            "the token has expired; get a new one",
        ),
        (
            mint(&|minted| minted.audiences = vec!["https://kubernetes.default.svc".into()]),
            Code::Unauthenticated,
            "the token is for https://kubernetes.default.svc, and this coordinator takes tokens for muster-coordinator.muster-system",
        ),
        (
            revoked,
            Code::Unauthenticated,
            "the Kubernetes API server does not accept the token: [invalid bearer token, ",
        ),
        (
            "opaque".into(),
            Code::Unauthenticated,
            "the token is no JSON Web Token",
        ),
        (
            mint(&|minted| minted.holder = Holder::pod("muster-system/other", "n1")),
            Code::PermissionDenied,
            "only pods of the service account muster-system/muster-agent are agents",
        ),
        (
            mint(&|minted| minted.holder = Holder::pod("team-a/muster-agent", "n1")),
            Code::PermissionDenied,
            "the token is of system:serviceaccount:team-a:muster-agent",
        ),
        (
            mint(&|minted| minted.holder.extra = json!({})),
            Code::Unauthenticated,
            "it must be of a pod's projected volume",
        ),
    ];
    for (token, code, says) in cases {
        let clients = secure.with_token(&token).await;
        for status in [
            whoami(&clients).await.unwrap_err(),
            refused_session(&clients, "n1").await,
        ] {
            assert_eq!(status.code(), code, "{status}");
            assert!(status.message().contains(says), "{says}: {status}");
            assert!(!status.message().contains(&token), "{status}");
        }
    }
    // What its claims refuse already, the API server is not asked about; the rest once each.
    assert_eq!(asked(&cluster, "tokenreviews"), 4);
}

#[tokio::test]
async fn every_method_refuses_every_bad_token_and_gives_an_agent_its_session_only() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let mint = |change: &dyn Fn(&mut Minted)| {
        let mut minted = Minted::ours(Holder::agent("n1"));
        change(&mut minted);
        cluster.change(|state| state.mint(minted))
    };
    let revoked = mint(&|_| {});
    cluster.change(|state| state.revoke(&revoked));
    let bad = [
        revoked,
        mint(&|minted| minted.expires_us = trust::now_us() - 1_000_000),
        mint(&|minted| minted.audiences = vec!["other".into()]),
        mint(&|minted| minted.holder = Holder::pod("team-a/muster-agent", "n1")),
        mint(&|minted| minted.holder = Holder::user("ann", &["system:masters"])),
    ];
    let agent = secure.with_token(&mint(&|_| {})).await;
    let mut wrong = Vec::new();
    let is_refused = |answer: &Result<(), Status>| {
        let code = answer.as_ref().err().map(Status::code);
        matches!(code, Some(Code::PermissionDenied | Code::Unauthenticated))
    };
    for token in &bad {
        let clients = secure.with_token(token).await;
        for (method, _) in METHODS {
            let answer = call(clients.channel(), method).await;
            if !is_refused(&answer) {
                wrong.push(format!("a bad token calls {method}: {answer:?}"));
            }
        }
    }
    for (method, least) in METHODS {
        let answer = call(agent.channel(), method).await;
        // An empty Join shows no join token.
        let may = method == "AgentService/Session" || least == Some(May::Ask);
        if is_refused(&answer) == may && method != "AccessService/Join" {
            wrong.push(format!("an agent calls {method}: {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn an_authenticator_that_knows_no_audiences_lets_nobody_in() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.no_audiences = true);
    let secure = beside(&cluster).await;
    let status = who(&secure, &mint(&cluster, Holder::agent("n1"))).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
}

#[tokio::test]
async fn an_older_api_server_is_asked_for_the_pod() {
    let cluster = Cluster::start().await;
    cluster.change(|state| {
        state.no_node_claims = true;
        state.put_pod("muster-system", "pod-on-n1", "uid-on-n1", "n1");
        state.put_pod("muster-system", "pod-on-n2", "a-later-pods", "n2");
        state.put_pod("muster-system", "pod-on-n3", "uid-on-n3", "");
    });
    let secure = beside(&cluster).await;
    let who = async |node: &str| who(&secure, &mint(&cluster, Holder::agent(node))).await;
    assert_eq!(who("n1").await.unwrap(), "host/n1");
    for (node, says) in [
        ("n2", "the pod pod-on-n2 of the token is gone, or another"),
        ("n3", "the pod pod-on-n3 of the token is on no node yet"),
        ("n4", "the pod pod-on-n4 of the token is gone, or another"),
    ] {
        let status = who(node).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        assert!(status.message().starts_with(says), "{status}");
    }
    cluster.change(|state| state.forbidden.insert("get pods"));
    let status = who("n5").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().ends_with("get on pods in muster-system"),
        "{status}"
    );
}

/// Their connections prove nothing by themselves, and of such there may be 512.
#[tokio::test]
async fn agents_with_tokens_do_not_count_as_strangers() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    // One name may have 256.
    let tokens = ["n1", "n2", "n3"].map(|node| mint(&cluster, Holder::agent(node)));
    let mut agents = Vec::new();
    for number in 0..520 {
        let clients = secure.with_token(&tokens[number % 3]).await;
        whoami(&clients).await.unwrap();
        agents.push(clients);
    }
    for clients in &agents {
        whoami(clients).await.unwrap();
    }
}

#[tokio::test]
async fn a_token_is_asked_about_once_however_often_it_is_shown() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let token = mint(&cluster, Holder::agent("n1"));
    let mut callers = Vec::new();
    for _ in 0..20 {
        callers.push(secure.with_token(&token).await);
    }
    let calls = callers.iter().map(whoami);
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), "host/n1");
    }
    assert_eq!(asked(&cluster, "tokenreviews"), 1);
}

#[tokio::test]
async fn at_most_64_tokens_are_asked_about_at_a_time_and_known_ones_do_not_wait() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let known = mint(&cluster, Holder::agent("known"));
    let known = secure.with_token(&known).await;
    whoami(&known).await.unwrap();
    let mut callers = Vec::new();
    for number in 0..80 {
        let token = mint(&cluster, Holder::agent(&format!("n{number}")));
        callers.push(secure.with_token(&token).await);
    }
    cluster.change(|state| state.faults.insert("tokenreviews", Fault::Hangs));
    let call = |clients: Clients| tokio::spawn(async move { whoami(&clients).await });
    let waiting: Vec<_> = callers.into_iter().map(call).collect();
    cluster
        .until(|state| state.asked["tokenreviews"] > 64)
        .await;
    assert_eq!(whoami(&known).await.unwrap(), "host/known");
    // On a busy machine the first ones may have given up, and others have their turn.
    let (asked, abandoned) = cluster.change(|state| (state.asked["tokenreviews"], state.abandoned));
    assert!(asked == 1 + 64 || abandoned > 0, "{asked}");
    cluster.change(|state| state.faults.clear());
    for caller in waiting {
        // Those that were asked about in vain come again, and the others have their answer.
        if let Err(status) = within(caller).await.unwrap() {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
        }
    }
}

#[tokio::test]
async fn while_the_api_server_is_away_known_tokens_are_good_and_nobody_new_is_let_in() {
    for (fault, says) in [
        (Fault::Busy, "it is overloaded (429)"),
        (Fault::Away, "away (503)"),
        (Fault::Cut, ""),
        (Fault::Nonsense, "its answer cannot be read"),
        (Fault::Hangs, "it did not answer within 4 s"),
    ] {
        let cluster = Cluster::start().await;
        let secure = asks_always(&cluster).await;
        let known = mint(&cluster, Holder::agent("n1"));
        assert_eq!(who(&secure, &known).await.unwrap(), "host/n1");
        cluster.change(|state| state.faults.insert("tokenreviews", fault));
        let token = mint(&cluster, Holder::agent("n2"));
        let (old, new) = tokio::join!(who(&secure, &known), who(&secure, &token));
        assert_eq!(old.unwrap(), "host/n1", "{fault:?}");
        let status = new.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let begins =
            "the token cannot be checked, because the Kubernetes API server cannot be asked: ";
        assert!(
            status.message().starts_with(begins) && status.message().contains(says),
            "{fault:?}: {status}"
        );
        assert!(!status.message().contains(&token), "{status}");
        // Back again, it is asked again, and what it refuses now is refused.
        cluster.change(|state| {
            state.faults.clear();
            state.revoke(&known);
        });
        assert_eq!(who(&secure, &token).await.unwrap(), "host/n2");
        let status = who(&secure, &known).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    }
}

#[tokio::test]
async fn a_coordinator_without_the_right_to_ask_says_which() {
    let cluster = Cluster::start().await;
    cluster.change(|state| state.forbidden.insert("create tokenreviews"));
    let secure = beside(&cluster).await;
    let status = who(&secure, &mint(&cluster, Holder::agent("n1"))).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status
            .message()
            .contains("ClusterRole system:auth-delegator"),
        "{status}"
    );
}

#[tokio::test]
async fn a_certificate_counts_before_a_token_and_without_the_flag_no_token_does() {
    let cluster = Cluster::start().await;
    let secure = beside(&cluster).await;
    let token = mint(&cluster, Holder::agent("n1"));
    let own = secure.host("n9").await;
    let options = Options {
        tls: Some(own.tls().unwrap()),
        tokens: Some(Tokens::one(Bearer::parse(&token).unwrap())),
        ..Options::default()
    };
    let both = within(dial(&secure.address, options)).await.unwrap();
    assert_eq!(whoami(&both).await.unwrap(), "host/n9");
    assert_eq!(asked(&cluster, "tokenreviews"), 0);

    let without = Secure::start().await;
    let status = who(&without, &token).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("takes no tokens"), "{status}");
}

/// A client of ours never sends a token without TLS. Others might.
#[tokio::test]
async fn a_token_in_clear_text_is_refused_and_ours_is_not_sent() {
    let cluster = Cluster::start().await;
    let server = Server::start().await;
    let token = mint(&cluster, Holder::agent("n1"));
    let mut request = tonic::Request::new(v1::WhoAmIRequest {});
    let value = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    let status = within(server.clients.access().who_am_i(request)).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status}");
    assert!(status.message().contains("over TLS only"), "{status}");

    let options = Options {
        tokens: Some(Tokens::new(|| panic!("nobody asks for it"))),
        ..Options::default()
    };
    let plain = within(dial(&server.endpoint.parse().unwrap(), options)).await;
    whoami(&plain.unwrap()).await.unwrap();
}

/// The program, with everything logged that can be.
#[tokio::test]
async fn no_token_is_ever_written_down() {
    let (cluster, directory) = (Cluster::start().await, tempfile::tempdir().unwrap());
    let state = directory.path().join("state");
    let names = ["127.0.0.1".to_owned()];
    let (authority, _) = trust::init(&state, None, &names).unwrap();
    let (kubeconfig, log) = (
        directory.path().join("kubeconfig"),
        directory.path().join("log"),
    );
    fs::write(&kubeconfig, cluster.kubeconfig()).unwrap();
    let to = fs::File::create(&log).unwrap();
    let running = Running::start_with(directory.path(), |command| {
        command
            .args(["--kubernetes-agents", "muster-system/muster-agent"])
            .args(["--log-filter", "trace"])
            .env("KUBECONFIG", &kubeconfig)
            .stderr(to);
    })
    .await;
    let tls =
        muster_rpc::tls::ClientTls::new(&muster_rpc::tls::Trust::Pinned(authority.pin()), None);
    let tls = tls.unwrap();
    let who = async |token: &str| {
        let options = Options {
            tls: Some(tls.clone()),
            tokens: Some(Tokens::one(Bearer::parse(token).unwrap())),
            ..Options::default()
        };
        let address = running.endpoint.parse().unwrap();
        whoami(&within(dial(&address, options)).await.unwrap()).await
    };
    let mut tokens = Vec::new();
    for (number, fault) in [
        None,
        Some(Fault::Nonsense),
        Some(Fault::Busy),
        Some(Fault::Cut),
    ]
    .into_iter()
    .enumerate()
    {
        let token = mint(&cluster, Holder::agent(&format!("n{number}")));
        cluster.change(|state| match fault {
            Some(fault) => drop(state.faults.insert("tokenreviews", fault)),
            None => state.faults.clear(),
        });
        assert_eq!(who(&token).await.is_ok(), fault.is_none());
        tokens.push(token);
    }
    tokens.push("opaque-and-secret".into());
    who(tokens.last().unwrap()).await.unwrap_err();
    drop(running);
    let mut looked = 0;
    let mut folders = vec![directory.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let content = fs::read(entry.path()).unwrap();
            looked += 1;
            for token in &tokens {
                // The claims alone would be enough to know it by.
                let part = token.split('.').nth(1).unwrap_or(token).as_bytes();
                let is_there = content.windows(part.len()).any(|at| at == part);
                assert!(!is_there, "a token in {}", entry.path().display());
            }
        }
    }
    let log = fs::read_to_string(&log).unwrap();
    assert!(looked > 5 && log.contains("TRACE"), "{looked}");
    assert!(log.contains("tokens cannot be reviewed"), "{log}");
}

#[test]
fn what_cannot_be_served_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let start = |server: &str, account: &str| {
        let cluster = json!({ "name": "c", "cluster": { "server": server } });
        let context = json!({ "name": "c", "context": { "cluster": "c", "user": "u" } });
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [context], "clusters": [cluster], "users": [{ "name": "u", "user": {} }],
        });
        fs::write(&kubeconfig, content.to_string()).unwrap();
        let mut command = program(&directory.path().join("state"));
        command
            .args(["--kubernetes-agents", account])
            .env("KUBECONFIG", &kubeconfig);
        refused(command)
    };
    let text = start("https://127.0.0.1:1", "muster-agent");
    assert!(
        text.contains("is not written as NAMESPACE/SERVICEACCOUNT"),
        "{text}"
    );
    let text = start("http://10.0.0.1:80", "muster-system/muster-agent");
    assert!(
        text.contains("tokens would go to the API server at http://10.0.0.1/ without TLS")
            || text.contains("at http://10.0.0.1:80/ without TLS"),
        "{text}"
    );
}
