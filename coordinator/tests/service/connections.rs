//! Connections: how many one name may have, and the end of those of a name that is denied.

use muster_coordinator::trust;
use muster_proto::v1::{self, agent_message::Message as FromAgent};
use muster_rpc::{Address, dial, dial::Options, identity::Kind};
use tokio::{
    io,
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tonic::Code;

use crate::{
    access::Secure,
    agent::{hello, say},
    server::within,
};

/// Passes one connection on to the coordinator, and tells when that has closed it.
async fn passed_on(secure: &Secure) -> (Address, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let coordinator = secure.address.to_string().replace("https://", "");
    let (tell, closed) = mpsc::channel(1);
    tokio::spawn(async move {
        let (caller, _) = listener.accept().await.unwrap();
        let (mut from_caller, mut to_caller) = caller.into_split();
        let stream = TcpStream::connect(coordinator).await.unwrap();
        let (mut from_coordinator, mut to_coordinator) = stream.into_split();
        tokio::spawn(async move { io::copy(&mut from_caller, &mut to_coordinator).await });
        // Whether it ends in order or not.
        let _ = io::copy(&mut from_coordinator, &mut to_caller).await;
        let _ = tell.send(()).await;
    });
    (address.parse().unwrap(), closed)
}

#[tokio::test]
async fn a_denial_ends_the_session_and_every_idle_connection_of_the_name() {
    let secure = Secure::start().await;
    let (n1, n2) = (secure.host("n1").await, secure.host("n2").await);
    let (address, mut closed) = passed_on(&secure).await;
    let options = Options {
        tls: Some(n1.tls().unwrap()),
        ..Options::default()
    };
    let idle = within(dial(&address, options)).await.unwrap();
    let who = within(idle.access().who_am_i(v1::WhoAmIRequest {})).await;
    assert_eq!(who.unwrap().into_inner().identity, "host/n1");
    let n1 = secure.as_whom(&n1).await;
    let (up, messages) = mpsc::channel(1);
    up.send(say(FromAgent::Hello(hello("n1")))).await.unwrap();
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let down = within(n1.agents().session(messages)).await.unwrap();
    let mut down = down.into_inner();

    let grants = trust::grants(secure.path()).unwrap();
    grants.deny(&"host/n1".parse().unwrap(), true).unwrap();
    // The agent says nothing meanwhile.
    let ended = within(async {
        loop {
            if let Err(ended) = down.message().await.map(Option::unwrap) {
                return ended;
            }
        }
    })
    .await;
    assert_eq!(ended.code(), Code::PermissionDenied, "{ended}");
    assert!(ended.message().contains("was denied by an operator"));
    within(closed.recv()).await.unwrap();
    let n2 = secure.as_whom(&n2).await;
    let who = within(n2.access().who_am_i(v1::WhoAmIRequest {})).await;
    assert_eq!(who.unwrap().into_inner().identity, "host/n2");
}

#[tokio::test]
async fn a_name_has_no_more_than_its_share_of_connections() {
    let secure = Secure::start().await;
    let (n1, n2) = (secure.host("n1").await, secure.host("n2").await);
    let whoami = async |own| {
        let clients = secure.as_whom(own).await;
        let who = within(clients.access().who_am_i(v1::WhoAmIRequest {})).await;
        who.map(|_| clients)
    };
    let mut held = Vec::new();
    for _ in 0..256 {
        held.push(whoami(&n1).await.unwrap());
    }
    let refused = whoami(&n1).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(
        refused
            .message()
            .starts_with("host/n1 has 256 connections already"),
        "{refused}"
    );
    whoami(&n2).await.unwrap();
    drop(held);
    within(async {
        while whoami(&n1).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The API server alone says who is a pod.
#[tokio::test]
async fn a_join_token_makes_nobody_a_worker_pod() {
    let secure = Secure::start().await;
    for name in [None, Some("digits-x7k2p.team-a.pod")] {
        let token = secure.token(Kind::Host, name, 1);
        let refused = secure.join(&token, "digits-x7k2p.team-a.pod").await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("names of worker pods end like this"),
            "{refused}"
        );
    }
}
