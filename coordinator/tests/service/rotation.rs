//! The authority changes while the coordinator serves.

use std::collections::BTreeSet;

use muster_coordinator::trust::{self, TrustError};
use muster_proto::v1::{
    self, agent_message::Message as FromAgent, coordinator_message::Message as ToAgent,
};
use muster_rpc::{
    credentials::Credentials,
    dial,
    dial::Options,
    enroll,
    identity::Kind,
    tls::{ClientTls, Pin, Trust as Trusted},
};
use tonic::Code;

use crate::{
    access::Secure,
    agent::{hello, say},
    server::within,
};

/// The authorities that the coordinator shows to somebody who trusts these.
async fn shown(secure: &Secure, trust: &Trusted) -> Result<BTreeSet<Pin>, &'static str> {
    let options = Options {
        tls: Some(ClientTls::new(trust, None).unwrap()),
        ..Options::default()
    };
    let clients = within(dial(&secure.address, options)).await;
    clients
        .map(|clients| clients.authorities())
        .map_err(|e| e.explain().unwrap())
}

/// Waits until the coordinator shows these authorities.
async fn until_shown(secure: &Secure, trust: &Trusted, pins: &BTreeSet<Pin>) {
    within(async {
        while shown(secure, trust).await.as_ref() != Ok(pins) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Who needs the old authority.
fn left(secure: &Secure) -> Vec<String> {
    let left = trust::needs_old(secure.path()).unwrap();
    left.keys().map(ToString::to_string).collect()
}

async fn until_left(secure: &Secure, wanted: &[&str]) {
    within(async {
        while left(secure) != wanted {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn who(secure: &Secure, own: &Credentials) -> String {
    let clients = secure.as_whom(own).await;
    let who = within(clients.access().who_am_i(v1::WhoAmIRequest {})).await;
    who.unwrap().into_inner().identity
}

#[tokio::test]
async fn the_authority_changes_under_callers_that_notice_nothing() {
    let secure = Secure::start().await;
    let first = trust::authorities(secure.path()).unwrap();
    let old_pin = Trusted::Pinned(first.pin());
    let old_file = Trusted::Authorities(first.bundle());
    let (n1, ann) = (secure.host("n1").await, secure.user("ann", None).await);
    assert_eq!(shown(&secure, &old_pin).await.unwrap(), first.pins());
    assert!(left(&secure).is_empty(), "there is no change");

    let both = trust::rotate(secure.path()).unwrap();
    let new_pin = Trusted::Pinned(both.pin());
    until_shown(&secure, &new_pin, &both.pins()).await;
    until_shown(&secure, &old_pin, &both.pins()).await;
    until_shown(&secure, &old_file, &both.pins()).await;
    assert_eq!(left(&secure), ["host/n1", "user/ann"]);

    // Who knows only the old authority is served, and gets what knows both.
    let again = within(enroll::renew(&n1, &secure.address)).await.unwrap();
    assert_eq!(again.pins(), both.pins());
    assert_eq!(
        left(&secure),
        ["host/n1", "user/ann"],
        "nobody has shown it"
    );
    assert_eq!(who(&secure, &n1).await, "host/n1");
    assert_eq!(who(&secure, &again).await, "host/n1");
    until_left(&secure, &["user/ann"]).await;
    // Joins work with either pin.
    let token = secure.token(Kind::Host, Some("n2"), 1);
    let n2 = within(enroll::join(&secure.address, &old_pin, &token, "")).await;
    assert_eq!(n2.unwrap().pins(), both.pins());
    let token = secure.token(Kind::Host, Some("n3"), 1);
    let n3 = within(enroll::join(&secure.address, &new_pin, &token, "")).await;
    assert_eq!(who(&secure, &n3.unwrap()).await, "host/n3");
    assert_eq!(left(&secure), ["user/ann"]);

    let refused = trust::finish(secure.path(), false).unwrap_err();
    let TrustError::OldNeeded(names) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(names.keys().next().unwrap().to_string(), "user/ann");
    let ann_again = within(enroll::renew(&ann, &secure.address)).await.unwrap();
    within(enroll::show(&ann_again, &secure.address))
        .await
        .unwrap();
    until_left(&secure, &[]).await;
    let (after, nobody) = trust::finish(secure.path(), false).unwrap();
    assert!(nobody.is_empty());
    assert_eq!(after.pins(), BTreeSet::from([both.pin()]));
    until_shown(&secure, &new_pin, &after.pins()).await;

    assert_eq!(who(&secure, &again).await, "host/n1");
    assert_eq!(who(&secure, &ann_again).await, "user/ann");
    for stale in [old_pin, old_file] {
        let why = shown(&secure, &stale).await.unwrap_err();
        assert!(why.contains("its authority was replaced"), "{why}");
    }
    // A certificate of the old authority proves nothing any more.
    let stale = Credentials {
        authorities: after.bundle(),
        ..ann
    };
    let error = within(enroll::show(&stale, &secure.address)).await;
    error.unwrap_err();
    // The next renewal forgets the old authority.
    let third = within(enroll::renew(&again, &secure.address))
        .await
        .unwrap();
    assert_eq!(third.pins(), after.pins());
}

#[tokio::test]
async fn a_change_ends_when_the_rest_is_denied_or_by_force() {
    let secure = Secure::start().await;
    let (_n1, _n2) = (secure.host("n1").await, secure.host("n2").await);
    trust::rotate(secure.path()).unwrap();
    assert_eq!(left(&secure), ["host/n1", "host/n2"]);
    let grants = trust::grants(secure.path()).unwrap();
    grants.deny(&"host/n1".parse().unwrap(), true).unwrap();
    assert_eq!(left(&secure), ["host/n2"]);
    assert!(trust::finish(secure.path(), false).is_err());
    let (_, forced) = trust::finish(secure.path(), true).unwrap();
    assert_eq!(forced.len(), 1);
    assert!(left(&secure).is_empty());
}

#[tokio::test]
async fn an_agent_hears_of_every_change_in_the_session_that_it_has() {
    let secure = Secure::start().await;
    let n1 = secure.as_whom(&secure.host("n1").await).await;
    let (up, messages) = tokio::sync::mpsc::channel(8);
    up.send(say(FromAgent::Hello(hello("n1")))).await.unwrap();
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let down = within(n1.agents().session(messages)).await.unwrap();
    let mut down = down.into_inner();
    let mut sequence = 0;
    let mut hear = async |pins: BTreeSet<Pin>| {
        let wanted: Vec<Vec<u8>> = pins.iter().map(|pin| pin.as_bytes().to_vec()).collect();
        let mut told = 0;
        within(async {
            loop {
                sequence += 1;
                let heartbeat = v1::Heartbeat { sequence };
                up.send(say(FromAgent::Heartbeat(heartbeat))).await.unwrap();
                loop {
                    match down.message().await.unwrap().unwrap().message.unwrap() {
                        ToAgent::Heartbeat(reply) if reply.sequence == sequence => break,
                        ToAgent::Authorities(authorities) => {
                            told += 1;
                            assert_eq!(authorities.spread_us, 20_000, "one node");
                            assert_eq!(authorities.pins, wanted);
                        }
                        _ => {}
                    }
                }
                if told > 0 {
                    return;
                }
            }
        })
        .await;
        assert_eq!(told, 1);
    };
    let first = trust::authorities(secure.path()).unwrap();
    hear(first.pins()).await;
    let both = trust::rotate(secure.path()).unwrap();
    hear(both.pins()).await;
    let (after, _) = trust::finish(secure.path(), true).unwrap();
    hear(after.pins()).await;
}

#[tokio::test]
async fn a_name_that_is_added_is_taken_while_the_coordinator_serves() {
    let secure = Secure::start().await;
    let (authorities, _) = trust::init(secure.path(), None, &["localhost".into()]).unwrap();
    let pin = Trusted::Pinned(authorities.pin());
    let address = secure.address.to_string();
    let address = address.replace("127.0.0.1", "localhost").parse().unwrap();
    within(async {
        loop {
            let options = Options {
                tls: Some(ClientTls::new(&pin, None).unwrap()),
                ..Options::default()
            };
            match dial(&address, options).await {
                Ok(_) => return,
                Err(e) => assert!(e.explain().unwrap().contains("not for this name"), "{e}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_change_that_cannot_be_read_changes_nothing() {
    let secure = Secure::start().await;
    let n1 = secure.host("n1").await;
    let before = trust::authorities(secure.path()).unwrap();
    let both = trust::rotate(secure.path()).unwrap();
    let folder = secure.path().join("trust");
    let settings = std::fs::read(folder.join("settings.json")).unwrap();
    std::fs::write(folder.join("settings.json"), "{").unwrap();
    assert!(trust::authorities(secure.path()).is_err());
    assert_eq!(who(&secure, &n1).await, "host/n1");
    let trusted = Trusted::Pinned(before.pin());
    let served = shown(&secure, &trusted).await.unwrap();
    assert!(served == before.pins() || served == both.pins());
    // When it can be read, it is taken.
    std::fs::write(folder.join("settings.json"), settings).unwrap();
    until_shown(&secure, &trusted, &both.pins()).await;
}

/// A connection outlives the authority of the certificate that it began with.
#[tokio::test]
async fn a_connection_of_the_old_authority_gets_nothing_of_the_new_one() {
    let secure = Secure::start().await;
    let n1 = secure.as_whom(&secure.host("n1").await).await;
    let who = within(n1.access().who_am_i(v1::WhoAmIRequest {})).await;
    assert_eq!(who.unwrap().into_inner().identity, "host/n1");
    let both = trust::rotate(secure.path()).unwrap();
    let new_pin = Trusted::Pinned(both.pin());
    until_shown(&secure, &new_pin, &both.pins()).await;
    let public_key = rcgen::KeyPair::generate().unwrap();
    let public_key = rcgen::PublicKeyData::subject_public_key_info(&public_key);
    let renew = || v1::RenewRequest {
        public_key: public_key.clone(),
    };
    within(n1.access().renew(renew())).await.unwrap();
    let (after, _) = trust::finish(secure.path(), true).unwrap();
    until_shown(&secure, &new_pin, &after.pins()).await;
    let refused = within(n1.access().renew(renew())).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    assert!(
        refused.message().contains("was replaced")
            && refused.message().contains("muster-agent join"),
        "{refused}"
    );
}
